"""LoRA adapters of a plan on the device: lines that cross in its parcel, at addresses that captured
passes know."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from quire.backends.triton.adapter_lines import TiledLines, tile_rows, tiled
from quire.executor.adapters import RowAdapters
from quire.executor.cuda.upload import Upload
from quire.request import Ints


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
    def variant(self) -> int:
        """What a graph with adapters was captured for."""
        return self.rows.sites.variant

    def pack(self, upload: Upload, name: str, slots: Ints) -> PackedLines | None:
        """Before the parcel is sent; None where no line has an adapter."""
        if not (slots >= 0).any():
            return None
        upload.add(name, np.append(tiled(slots, self._num_slots).ravel(), slots))
        return PackedLines(name, slots)

    def lines(self, upload: Upload, packed: PackedLines) -> TiledLines:
        """As they came: for a pass that is not captured."""
        return TiledLines(*self._taken(upload, packed), packed.slots, self._num_slots)

    def fixed(self, name: str, num_lines: int) -> TiledLines:
        """The lines of captured passes of this size; no line has a slot until some are brought."""
        key = (name, num_lines)
        if key not in self._fixed:
            with torch.inference_mode(False):
                none: Ints = np.full(num_lines, -1, np.int32)
                self._fixed[key] = TiledLines.of(none, self._num_slots, self._device)
        return self._fixed[key]

    def bring(self, upload: Upload, packed: PackedLines) -> TiledLines:
        """Write lines that were sent to where captured passes of their size look."""
        fixed = self.fixed(packed.name, len(packed.slots))
        tiles, by_line = self._taken(upload, packed)
        fixed.tiles.copy_(tiles)
        fixed.by_line.copy_(by_line)
        fixed.slots[:] = packed.slots
        return fixed

    def use(self, lines: TiledLines | None) -> None:
        """What is computed next has these lines."""
        self.rows.use_pass(lines)

    def _taken(self, upload: Upload, packed: PackedLines) -> tuple[Tensor, Tensor]:
        """Their tiles, and of each line its slot."""
        taken, count = upload.take(packed.name), len(packed.slots)
        return taken[:-count].to(torch.int32).view(-1, 1 + tile_rows(count)), taken[-count:]

    def close(self) -> None:
        self._fixed.clear()
