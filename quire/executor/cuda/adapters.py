"""LoRA adapters of a plan on the device: lines that cross in its parcel, at addresses that captured
passes know."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quire.backends.triton.adapters import TiledLines, most_tiles, tiled
from quire.executor.adapters import RowAdapters
from quire.executor.cuda.upload import Upload
from quire.request import Ints

_ARRAYS = ("order", "tiles", "in_order")


@dataclass(frozen=True, slots=True)
class PackedLines:
    """Lines in a parcel, under a name."""

    name: str
    slots: Ints


class CudaAdapters:
    """The rows' adapters, and the lines of passes."""

    def __init__(self, rows: RowAdapters, num_slots: int, device: torch.device) -> None:
        self.rows, self._num_slots, self._device = rows, num_slots, device
        self._fixed: dict[tuple[str, int], TiledLines] = {}

    @property
    def variant(self) -> tuple[int, ...]:
        """What a graph with adapters was captured for."""
        return self.rows.sites.variant

    def pack(self, upload: Upload, name: str, slots: Ints) -> PackedLines | None:
        """Before the parcel is sent; None where no line has an adapter."""
        if not (slots >= 0).any():
            return None
        for what, array in zip(_ARRAYS, tiled(slots, self._num_slots), strict=True):
            upload.add(f"{name} {what}", array)
        return PackedLines(name, slots)

    def lines(self, upload: Upload, packed: PackedLines) -> TiledLines:
        """As they came: for a pass that is not captured."""
        order, tiles, in_order = self._taken(upload, packed)
        return TiledLines(packed.slots, self._num_slots, order, tiles.view(-1, 3), in_order)

    def fixed(self, name: str, num_lines: int) -> TiledLines:
        """The lines of captured passes of this size; no tile has any until some are brought."""
        key = (name, num_lines)
        if key not in self._fixed:
            with torch.inference_mode(False):
                sizes = ((num_lines,), (most_tiles(num_lines, self._num_slots), 3), (num_lines,))
                made = (torch.zeros(s, dtype=torch.int32, device=self._device) for s in sizes)
                slots: Ints = torch.full((num_lines,), -1, dtype=torch.int32).numpy()
                self._fixed[key] = TiledLines(slots, self._num_slots, *made)
        return self._fixed[key]

    def bring(self, upload: Upload, packed: PackedLines) -> TiledLines:
        """Write lines that were sent to where captured passes of their size look."""
        fixed = self.fixed(packed.name, len(packed.slots))
        order, tiles, in_order = self._taken(upload, packed)
        fixed.order.copy_(order)
        fixed.tiles.copy_(tiles.view(-1, 3))
        fixed.in_order.copy_(in_order)
        fixed.slots[:] = packed.slots
        return fixed

    def use(self, lines: TiledLines | None) -> None:
        """What is computed next has these lines."""
        self.rows.use_pass(lines)

    def _taken(self, upload: Upload, packed: PackedLines) -> list[Tensor]:
        return [upload.take(f"{packed.name} {what}").to(torch.int32) for what in _ARRAYS]

    def close(self) -> None:
        self._fixed.clear()
