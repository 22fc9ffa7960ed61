"""What adapters add to products of latents, on the device."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import cast

import torch
from torch import Tensor

from quire.backends.adapted_pairs import matrices_of
from quire.backends.adapter_ops import AdaptedPairs, AdapterLines, Added
from quire.backends.own_places import OwnPlaces
from quire.backends.triton.adapter_lines import TiledLines


class PlacedPairs(AdaptedPairs):
    """Every adapter is multiplied with all lines, and each line takes its own: so the launches are
    the same for any lines, and a pass may be captured. An adapter of rank r costs r / plain + r / K
    of the products themselves; few adapters change them."""

    def __init__(self, device: torch.device, sizes: tuple[int, int, int]) -> None:
        self._sizes, self._own = sizes, OwnPlaces(device)

    def load(self, slot: int, added: Sequence[Added]) -> None:
        self._own.free(slot)
        if added:
            a, keys, values = matrices_of(added, *self._sizes)
            self._own.load(slot, (a, keys.contiguous(), values.contiguous()))

    def add_to_rows(self, x: Tensor, y: Tensor, lines: AdapterLines) -> None:
        for mine, (a, keys, _) in self._own.used(cast(TiledLines, lines).by_line):
            narrow = _of_lines(mine, (x.transpose(0, 1) @ keys).transpose(0, 1))
            y.view(-1, y.shape[-1]).addmm_(narrow.flatten(0, 1), a)

    def add_to_values(self, x: Tensor, y: Tensor, lines: AdapterLines) -> None:
        for mine, (a, _, values) in self._own.used(cast(TiledLines, lines).by_line):
            narrow = _of_lines(mine, x @ a.t())
            y.transpose(0, 1).baddbmm_(narrow.transpose(0, 1), values.transpose(1, 2))

    @property
    def variant(self) -> Hashable:
        return self._own.variant

    def release(self) -> None:
        self._own.release()


def _of_lines(mine: Tensor, narrow: Tensor) -> Tensor:
    """What A, or B of the keys, made of the lines [T, heads, rank] that are `mine` [T]; 0 of
    others. Only this is chosen by line: what is made of it is larger, and added in place."""
    return torch.where(mine[:, None, None], narrow, 0)
