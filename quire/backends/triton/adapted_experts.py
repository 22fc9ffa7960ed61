"""LoRA adapters of the experts of a layer: A and B by adapter and expert.

A pair is a token and one of its experts. Pairs whose line has an adapter for experts are put into
tiles by adapter and expert, on the device; then the same launches as for any product add to the
experts' results. Adapters without changes of experts cost neither memory nor work here: only those
with some have a place, and there are as many places as were needed at once.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from quire.backends.adapter_ops import AdapterLines, AdapterRoom, Added, ExpertSlots
from quire.backends.triton.adapter_lines import TiledLines, Tiles
from quire.backends.triton.adapter_stacks import Stacks
from quire.backends.triton.experts import FusedExperts

FREE = -1


class StackedExperts(ExpertSlots):
    """Slots of both products of all experts."""

    def __init__(
        self, room: AdapterRoom, base: FusedExperts, up_rows: tuple[int, ...], hidden: int
    ) -> None:
        self._room, self._base, self._count = room, base, base.count
        self._sizes = ((up_rows, hidden), ((hidden,), base.width))
        self._forget()

    def _forget(self) -> None:
        self._held: list[int] = []  # the slot of each place
        self._sides: tuple[Stacks, ...] = ()
        # The place of each slot; the last entry is for lines without a slot.
        self._place_of = torch.full((self._room.num_slots + 1,), FREE, device=self._room.device)

    def load(
        self,
        slot: int,
        ups: Mapping[int, Sequence[Added]],
        downs: Mapping[int, Sequence[Added]],
    ) -> None:
        if slot in self._held:
            self._held[self._held.index(slot)] = FREE
            self._place_of[slot] = FREE
        if not ups and not downs:
            return
        all_of = (one for added in (ups, downs) for some in added.values() for one in some)
        if self._base.has_biases and any(one.factor is not None for one in all_of):
            raise LookupError("DoRA of experts with biases, which is not built. This is a bug.")
        if FREE not in self._held:
            self._grow()
        place = self._held.index(FREE)
        for side, added in zip(self._sides, (ups, downs), strict=True):
            some = [added.get(expert, ()) for expert in range(self._count)]
            side.load(place * self._count, some)
        self._held[place] = slot
        self._place_of[slot] = place

    def _grow(self) -> None:
        """Add a place. Passes captured with fewer places do not run again: see `variant`."""
        self._held.append(FREE)
        room = replace(self._room, num_slots=len(self._held) * self._count)
        made = tuple(Stacks(room, *sizes, None) for sizes in self._sizes)
        for new, old in zip(made, self._sides, strict=False):
            new.take_over(old)
        self._sides = made

    def compute(self, x: Tensor, chosen: Tensor, scores: Tensor, lines: AdapterLines) -> Tensor:
        place = self._place_of[cast(TiledLines, lines).by_line][:, None]
        kinds = torch.where(place < 0, FREE, place * self._count + chosen).flatten()
        tiles = Tiles.of_kinds(kinds, len(self._held) * self._count)
        (up, down), per_token = self._sides, chosen.shape[1]

        def after_up(given: Tensor, made: Tensor) -> Tensor:
            return up.add(given.repeat_interleave(per_token, 0), made, tiles)

        def after_down(given: Tensor, made: Tensor) -> Tensor:
            return down.add(given, made, tiles)

        return self._base.changed(x, chosen, scores, after_up, after_down)

    @property
    def variant(self) -> Hashable:
        if all(slot == FREE for slot in self._held):
            return 0
        return len(self._held), *(side.expands.less is not None for side in self._sides)

    def release(self) -> None:
        self._forget()

    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(tensor for side in self._sides for tensor in side.tensors())
