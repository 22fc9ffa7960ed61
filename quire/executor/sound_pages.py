"""SoundPages: keys and values of sounds, in blocks as the kernels of a GPU read them."""

from __future__ import annotations

import torch
from torch import Tensor

from quire.errors import EngineError
from quire.spec import ModelSpec
from quire.step import StepPlan

NO_SOUND = -1


class SoundPages:
    """Places for sounds, of as many blocks as a sound's rows take, and the place of each sound.
    pages [layers, 2, places * blocks of each, heads, S, D]; place i has the blocks tables[i]."""

    def __init__(
        self,
        spec: ModelSpec,
        num_places: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.num_rows, self.num_places = spec.heard_rows, num_places
        each = -(-self.num_rows // block_size)
        layers = sum(layer.cross is not None for layer in spec.layers)
        block = (spec.num_kv_heads, block_size, spec.head_dim)
        self.pages = torch.empty(layers, 2, num_places * each, *block, dtype=dtype, device=device)
        numbers = torch.arange(num_places * each, dtype=torch.int32, device=device)
        self.tables = numbers.view(num_places, each)
        self.clear()

    def clear(self) -> None:
        self._place_of: dict[int, int] = {}
        self._free = list(range(self.num_places))

    def assign(self, plan: StepPlan) -> None:
        """Free the places of items that the plan forgets, and give places to those it encodes."""
        for serial in plan.forgotten.tolist():
            if serial in self._place_of:
                self._free.append(self._place_of.pop(serial))
        for one in plan.encode:
            if not self._free:
                raise EngineError(f"more than {self.num_places} sounds at a time. This is a bug.")
            self._place_of[one.serial] = self._free.pop()

    def place_of(self, serial: int) -> int:
        """The place of a sound, which may be encoded only later in this plan."""
        return self._place_of[serial] if serial else NO_SOUND

    def put(self, serial: int, rows: Tensor) -> None:
        """Store a sound's rows [num_rows, layers, 2, heads, D]."""
        each, (layers, _, _, heads, size, width) = self.tables.shape[1], self.pages.shape
        first, whole = each * self._place_of[serial], self.num_rows // size
        by_head, shape = rows.permute(1, 2, 3, 0, 4), (layers, 2, heads, whole, size, width)
        full = by_head[:, :, :, : whole * size].reshape(shape)
        self.pages[:, :, first : first + whole] = full.transpose(2, 3)
        if rest := self.num_rows % size:
            self.pages[:, :, first + whole, :, :rest] = by_head[:, :, :, whole * size :]
