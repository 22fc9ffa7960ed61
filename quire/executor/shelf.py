"""Shelf: encoded media on the device, by serial. The scheduler decides what is in it."""

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

# Room for a tower's activations in one call: a few thousand patches, a few layers' worth.
ENCODING_BYTES = 1 << 30
ROW_COPIES = 3
# Bounds of rows kept for later prompts: some hundred images, and a share of free memory.
KEPT_BYTES, KEPT_SHARE = 2 << 30, 16


class Tower(Protocol):
    hidden_size: int  # of the residual stream
    row_width: int  # numbers of a row, with those for deeper layers

    def encode(self, items: Sequence[Encode]) -> Iterable[Tensor]:
        """The rows of each item [count, H], or [count, (1 + layers) * H] with deeper layers; of a
        sound for cross-attention its keys and values [count, layers, 2, heads, D]."""


class Shelf:
    """Encodes the items that plans list, and returns them for the plans' slices."""

    def __init__(
        self,
        load: Callable[[], Tower] | None,
        *,
        alone: bool = False,
        tp: TensorParallel | None = None,
    ) -> None:
        """`load` makes the tower when the first item comes; None: the model has none. `alone`: each
        token attends to a sound by itself, so that it has the same bits in any pass. `tp`: the
        ranks that encode the same items."""
        self._load, self._alone, self._tp = load, alone, tp or TensorParallel()
        self._tower: Tower | None = None
        self._aside = Lock()
        self._unusable: QuireError | None = None  # why the tower could not be loaded
        self._rows: dict[int, Tensor] = {}
        self._failed: set[int] = set()  # serials of items that could not be encoded
        self.pages: SoundPages | None = None  # sounds for cross-attention on a GPU
        self.num_encoded = 0
        self.num_rows = 0  # the bound of kept rows; 0: no bound here

    @property
    def tower(self) -> Tower:
        if self._tower is None:
            if self._load is None:
                raise EngineError("a plan with media for a model that has no tower.")
            if self._unusable is not None:
                raise self._unusable
            try:
                self._tower = self._load()
            except ModelError as error:  # do not read its files again for every item
                self._unusable = error
                raise
        return self._tower

    @property
    def is_flat(self) -> bool:
        """Whether rows only replace embeddings, and deeper layers get none."""
        return self.tower.row_width == self.tower.hidden_size

    def load(self) -> None:
        """Make the tower now, if the model has one."""
        if self._load is not None:
            _ = self.tower

    def encode_aside(self, item: Encode) -> Mapping[str, npt.NDArray[Any]]:
        """The item with its rows, for a later plan. Other threads than the engine's may call it;
        one item is encoded at a time. If it fails, the plan encodes the item again and reports
        why."""
        try:
            with self._aside:
                [rows] = by_usual_defaults(self.tower.encode)([item])
        except Exception:  # Transformers' module, over whatever a checkpoint holds
            return item.arrays
        return {"rows": rows.float().numpy()}

    def reserved_bytes(self, num_rows: int, itemsize: int) -> int:
        """Bytes that encoding takes beside the tower's weights: activations, and copies of rows."""
        if self._load is None:
            return 0
        return ENCODING_BYTES + ROW_COPIES * num_rows * self.tower.row_width * itemsize

    def keep(self, free: int, itemsize: int) -> int:
        """Set `num_rows`, the bound of kept rows, by the free bytes. Returns their bytes."""
        if self._load is None:
            return 0
        row = self.tower.row_width * itemsize
        self.num_rows = max(1, min(KEPT_BYTES, free // KEPT_SHARE) // row)
        return self.num_rows * row

    def change(self, plan: StepPlan) -> None:
        """Drop and encode the items that a plan names. Errors pass through."""
        self._forget(plan)
        if plan.encode:
            self._encode(plan.encode)

    def change_each(self, plan: StepPlan) -> dict[int, str]:
        """As `change`, but returns by serial why items could not be encoded, on this rank or
        another. The shelf has no rows of these."""
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
        """Encode all items together; if that fails, each by itself. Returns why items failed."""
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
        """The rows that replace embeddings in the pass of these slices, None without media. Items
        that could not be encoded are left out."""
        places, rows = [], []
        for one, first in zip(prefill, query_starts, strict=False):
            for part in one.media:
                if part.serial in self._failed:
                    continue
                held, count = self._rows[part.serial], len(part.offsets)
                places.append(part.offsets + first)
                whole = count == len(held)  # the usual case; a view would cost as much as the rest
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
        """The sounds of a pass: sequence i attends to item serials[i]. Sequences with the same
        sound are computed together."""
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
        """Drop the tower and all rows. It is made again when the next item comes."""
        self.clear()
        self._tower = self.pages = self._unusable = None


def why_not(error: Exception) -> str:
    """Why an item was not encoded, in words. Errors of quire need no class name."""
    said = reason(error)
    return said if isinstance(error, QuireError) else f"{type(error).__name__}: {said}"
