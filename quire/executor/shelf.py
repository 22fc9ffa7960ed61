"""Shelf: encoded media on the device, by serial. The scheduler says what comes and what goes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from quire.errors import EngineError
from quire.executor.sound_pages import SoundPages
from quire.layers.cross import Heard, HeardPart, HeardParts
from quire.layers.host_arrays import on_device
from quire.layers.overlay import Overlay
from quire.step import Encode, Slice, StepPlan

# Activations of a tower over the images of one call: a few thousand patches, a few layers' worth.
ENCODING_BYTES = 1 << 30
ROW_COPIES = 3
# Rows that are kept for prompts to come: some hundred images, or a small part of what is free.
KEPT_BYTES, KEPT_SHARE = 2 << 30, 16


class Tower(Protocol):
    """What encodes media."""

    hidden_size: int  # of the stream that its rows join
    row_width: int  # numbers of a row, with those that deeper layers are given

    def encode(self, items: Sequence[Encode]) -> Iterable[Tensor]:
        """The rows of each item [count, H], or [count, (1 + layers) * H]; of one that is heard
        keys and values, [count, layers, 2, heads, D]."""


class Shelf:
    """Encodes what plans list, and finds it for their slices."""

    def __init__(self, load: Callable[[], Tower] | None, *, alone: bool = False) -> None:
        """`load` makes the tower when the first item comes; None: there is none. `alone`: each
        token hears by itself, so that it has the same bits in any pass."""
        self._load, self._alone = load, alone
        self._tower: Tower | None = None
        self._rows: dict[int, Tensor] = {}
        self.pages: SoundPages | None = None  # where a GPU has the sounds that are heard
        self.num_encoded = 0
        self.num_rows = 0  # that are kept, if that is bounded here

    @property
    def tower(self) -> Tower:
        if self._tower is None:
            if self._load is None:
                raise EngineError("a plan with media for a model that has no tower.")
            self._tower = self._load()
        return self._tower

    @property
    def is_flat(self) -> bool:
        """Whether rows join the stream before the first layer, and nowhere else."""
        return self.tower.row_width == self.tower.hidden_size

    def load(self) -> None:
        """Make the tower now, where there is one."""
        if self._load is not None:
            _ = self.tower

    def reserved_bytes(self, num_rows: int, itemsize: int) -> int:
        """What encoding takes beside the tower's weights: its activations, and so many rows on
        their way."""
        if self._load is None:
            return 0
        return ENCODING_BYTES + ROW_COPIES * num_rows * self.tower.row_width * itemsize

    def keep(self, free: int, itemsize: int) -> int:
        """Bound the rows that are kept, to `num_rows`: the bytes that they take of `free` ones."""
        if self._load is None:
            return 0
        row = self.tower.row_width * itemsize
        self.num_rows = max(1, min(KEPT_BYTES, free // KEPT_SHARE) // row)
        return self.num_rows * row

    def change(self, plan: StepPlan) -> None:
        """What a plan says of media before its pass."""
        for serial in plan.forgotten.tolist():
            self._rows.pop(serial, None)
        if not plan.encode:
            return
        self.num_encoded += len(plan.encode)
        for one, rows in zip(plan.encode, self.tower.encode(plan.encode), strict=True):
            if len(rows) != one.count:
                raise EngineError(
                    f"the tower made {len(rows)} rows of an {one.kind} that has {one.count} "
                    "tokens. This is a bug."
                )
            if self.pages is None:
                self._rows[one.serial] = rows
            else:
                self.pages.put(one.serial, rows)

    def overlay(self, prefill: Sequence[Slice], query_starts: Sequence[int]) -> Overlay | None:
        """What stands where in the pass of these slices; None where no slice has media."""
        if not any(one.media for one in prefill):
            return None
        places, rows = [], []
        for one, first in zip(prefill, query_starts, strict=False):
            for part in one.media:
                held, count = self._rows[part.serial], len(part.offsets)
                places.append(part.offsets + first)
                whole = count == len(held)  # as mostly: a view of it would take as long as the rest
                rows.append(held if whole else held[part.first : part.first + count])
        found = torch.cat(rows)
        at = on_device(np.concatenate(places).astype(np.int64), found.device)
        width = self.tower.hidden_size
        if found.shape[1] == width:
            return Overlay(at, found)
        parts = found.view(len(found), -1, width).transpose(0, 1)
        return Overlay(at, parts[0], parts[1:])

    def heard(self, serials: npt.NDArray[np.int64], query_starts: Tensor) -> Heard:
        """What the sequences of a pass hear, sequence i the item serials[i]: those who hear the
        same together."""
        starts = query_starts.cpu().numpy()
        parts = []
        for serial in np.unique(serials).tolist():
            who = np.flatnonzero(serials == serial)
            tokens = np.concatenate([np.arange(starts[i], starts[i + 1]) for i in who])
            keys_values = self._rows[serial].permute(1, 2, 3, 0, 4)
            for some in np.split(tokens, len(tokens)) if self._alone else (tokens,):
                parts.append(HeardPart(torch.from_numpy(some), keys_values))
        return HeardParts(parts)

    def clear(self) -> None:
        self._rows.clear()
        if self.pages is not None:
            self.pages.clear()

    def drop_tower(self) -> None:
        """With the weights; it is made again when an item comes."""
        self.clear()
        self._tower = self.pages = None
