"""Shelf: encoded media on the device, by serial. The scheduler says what comes and what goes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import Lock
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from quire.base.boundary import reason
from quire.errors import EngineError, ModelError, QuireError
from quire.executor.sound_pages import SoundPages
from quire.executor.torch_defaults import by_usual_defaults
from quire.layers.cross import Heard, HeardPart, HeardParts
from quire.layers.host_arrays import on_device
from quire.layers.overlay import Overlay
from quire.layers.tp import TensorParallel
from quire.step import Encode, Slice, StepPlan

# Activations of a tower over the images of one call: a few thousand patches, a few layers' worth.
ENCODING_BYTES = 1 << 30
ROW_COPIES = 3
# Rows that are kept for prompts to come: some hundred images, or a small part of what is free.
KEPT_BYTES, KEPT_SHARE = 2 << 30, 16


class Tower(Protocol):
    hidden_size: int  # of the stream that its rows join
    row_width: int  # numbers of a row, with those that deeper layers are given

    def encode(self, items: Sequence[Encode]) -> Iterable[Tensor]:
        """The rows of each item [count, H], or [count, (1 + layers) * H]; of one that is heard
        keys and values, [count, layers, 2, heads, D]."""


class Shelf:
    """Encodes what plans list, and finds it for their slices."""

    def __init__(
        self,
        load: Callable[[], Tower] | None,
        *,
        alone: bool = False,
        tp: TensorParallel | None = None,
    ) -> None:
        """`load` makes the tower when the first item comes; None: there is none. `alone`: each
        token hears by itself, so that it has the same bits in any pass. `tp`: the ranks that
        encode the same."""
        self._load, self._alone, self._tp = load, alone, tp or TensorParallel()
        self._tower: Tower | None = None
        self._aside = Lock()
        self._unusable: QuireError | None = None  # why there is no tower, once that is known
        self._rows: dict[int, Tensor] = {}
        self._failed: set[int] = set()  # serials of what could not be encoded
        self.pages: SoundPages | None = None  # where a GPU has the sounds that are heard
        self.num_encoded = 0
        self.num_rows = 0  # that are kept, if that is bounded here

    @property
    def tower(self) -> Tower:
        if self._tower is None:
            if self._load is None:
                raise EngineError("a plan with media for a model that has no tower.")
            if self._unusable is not None:
                raise self._unusable
            try:
                self._tower = self._load()
            except ModelError as error:  # its files are not read again for every item
                self._unusable = error
                raise
        return self._tower

    @property
    def is_flat(self) -> bool:
        """Whether rows join the stream before the first layer, and nowhere else."""
        return self.tower.row_width == self.tower.hidden_size

    def load(self) -> None:
        """Make the tower now, where there is one."""
        if self._load is not None:
            _ = self.tower

    def encode_aside(self, item: Encode) -> Mapping[str, npt.NDArray[Any]]:
        """The item with its rows, for a plan that is yet to come: another thread than the engine's
        may have them made, one item at a time. What fails here is left for the plan to tell."""
        try:
            with self._aside:
                [rows] = by_usual_defaults(self.tower.encode)([item])
        except Exception:  # Transformers' module, over whatever a checkpoint holds
            return item.arrays
        return {"rows": rows.float().numpy()}

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
        self._forget(plan)
        if plan.encode:
            self._encode(plan.encode)

    def change_each(self, plan: StepPlan) -> dict[int, str]:
        """The same. Of those that cannot be encoded, on this rank or another, it says why, by
        serial; nothing of theirs is on the shelf."""
        self._forget(plan)
        failed = self._encode_apart(plan.encode)
        if plan.encode and self._tp.size > 1:
            mine = torch.tensor([float(one.serial in failed) for one in plan.encode])
            for one, missing in zip(plan.encode, self._tp.all_reduce(mine).tolist(), strict=True):
                if missing:
                    self._rows.pop(one.serial, None)
                    failed.setdefault(one.serial, "another rank could not")
        self._failed -= {one.serial for one in plan.encode}
        self._failed |= failed.keys()
        return failed

    def _encode_apart(self, items: Sequence[Encode]) -> dict[int, str]:
        """All together; where that fails, each by itself. Why some of them could not be, by
        serial."""
        failed: dict[int, str] = {}
        try:
            if items:
                self._encode(items)
        except Exception as error:  # Transformers' module, over whatever a checkpoint holds
            if len(items) == 1:
                failed[items[0].serial] = why_not(error)
            else:
                for one in items:
                    failed |= self._encode_apart([one])
        return failed

    def _forget(self, plan: StepPlan) -> None:
        for serial in plan.forgotten.tolist():
            self._rows.pop(serial, None)

    def _encode(self, items: Sequence[Encode]) -> None:
        for one, rows in zip(items, self.tower.encode(items), strict=True):
            if len(rows) != one.count:
                raise EngineError(
                    f"the tower made {len(rows)} rows of an {one.kind} that has {one.count} "
                    "tokens. This is a bug."
                )
            self.num_encoded += 1
            if self.pages is None:
                self._rows[one.serial] = rows
            else:
                self.pages.put(one.serial, rows)

    def overlay(self, prefill: Sequence[Slice], query_starts: Sequence[int]) -> Overlay | None:
        """What stands where in the pass of these slices; None where no slice has media. What could
        not be encoded stands nowhere."""
        places, rows = [], []
        for one, first in zip(prefill, query_starts, strict=False):
            for part in one.media:
                if part.serial in self._failed:
                    continue
                held, count = self._rows[part.serial], len(part.offsets)
                places.append(part.offsets + first)
                whole = count == len(held)  # as mostly: a view of it would take as long as the rest
                rows.append(held if whole else held[part.first : part.first + count])
        if not rows:
            return None
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
            if serial in self._failed:
                continue
            who = np.flatnonzero(serials == serial)
            tokens = np.concatenate([np.arange(starts[i], starts[i + 1]) for i in who])
            keys_values = self._rows[serial].permute(1, 2, 3, 0, 4)
            for some in np.split(tokens, len(tokens)) if self._alone else (tokens,):
                parts.append(HeardPart(torch.from_numpy(some), keys_values))
        return HeardParts(parts)

    def clear(self) -> None:
        self._rows.clear()
        self._failed.clear()
        if self.pages is not None:
            self.pages.clear()

    def drop_tower(self) -> None:
        """With the weights; it is made again when an item comes."""
        self.clear()
        self._tower = self.pages = self._unusable = None


def why_not(error: Exception) -> str:
    """Why an item was not encoded, in words; what quire says of a model stands by itself."""
    said = reason(error)
    return said if isinstance(error, QuireError) else f"{type(error).__name__}: {said}"
