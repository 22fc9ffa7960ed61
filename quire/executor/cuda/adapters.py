"""LoRA adapters of a plan on the device: the slots of its lines are sent in its upload, and are
copied to fixed addresses for captured passes."""

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
    """The slots of some lines, in an upload under this name."""

    name: str
    slots: Ints


class CudaAdapters:
    """The adapters of rows, and the slots of the lines of passes."""

    def __init__(self, rows: RowAdapters, num_slots: int, device: torch.device) -> None:
        self.rows, self._num_slots, self._device = rows, num_slots, device
        self._fixed: dict[tuple[str, int], TiledLines] = {}

    @property
    def variant(self) -> int:
        """The number of the kernels that loaded adapters need: part of a graph's key."""
        return self.rows.sites.variant

    def pack(self, upload: Upload, name: str, slots: Ints) -> PackedLines | None:
        """Called before the upload is sent. None if no line has an adapter."""
        if not (slots >= 0).any():
            return None
        upload.add(name, np.append(tiled(slots, self._num_slots).ravel(), slots))
        return PackedLines(name, slots)

    def lines(self, upload: Upload, packed: PackedLines) -> TiledLines:
        """The sent lines themselves, for a pass that is not captured."""
        return TiledLines(*self._taken(upload, packed), packed.slots, self._num_slots)

    def fixed(self, name: str, num_lines: int) -> TiledLines:
        """The lines of captured passes of this size; at first no line has a slot."""
        key = (name, num_lines)
        if key not in self._fixed:
            with torch.inference_mode(False):
                none: Ints = np.full(num_lines, -1, np.int32)
                self._fixed[key] = TiledLines.of(none, self._num_slots, self._device)
        return self._fixed[key]

    def bring(self, upload: Upload, packed: PackedLines) -> TiledLines:
        """Copy sent lines to the addresses that captured passes of their size read."""
        fixed = self.fixed(packed.name, len(packed.slots))
        tiles, by_line = self._taken(upload, packed)
        fixed.tiles.copy_(tiles)
        fixed.by_line.copy_(by_line)
        fixed.slots[:] = packed.slots
        return fixed

    def use(self, lines: TiledLines | None) -> None:
        """Set the lines of the next pass."""
        self.rows.use_pass(lines)

    def _taken(self, upload: Upload, packed: PackedLines) -> tuple[Tensor, Tensor]:
        """The tiles of the lines, and the slot of each line."""
        taken, count = upload.take(packed.name), len(packed.slots)
        return taken[:-count].to(torch.int32).view(-1, 1 + tile_rows(count)), taken[-count:]

    def close(self) -> None:
        self._fixed.clear()
