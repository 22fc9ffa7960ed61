"""Numbers that adapters have in place of the base's, for passes that are captured.

An adapter's numbers are in a place with a fixed address; the slot to which they belong is a number
on the device. A pass computes all places in use for all its lines, and each line takes the result
of its own slot, so the launches are the same for any lines. An adapter with such numbers thus costs
another product; without such adapters nothing is computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

FREE = -2  # no line's slot


@dataclass(slots=True)
class _Place:
    """Memory for tensors of these shapes and dtypes. `slot` int64 [] is on the device, `held` is
    its copy on the host."""

    tensors: tuple[Tensor, ...]
    slot: Tensor
    held: int = FREE

    def takes(self, numbers: Sequence[Tensor]) -> bool:
        pairs = zip(self.tensors, numbers, strict=False)
        alike = all(one.shape == other.shape and one.dtype == other.dtype for one, other in pairs)
        return self.held == FREE and len(self.tensors) == len(numbers) and alike

    def hold(self, slot: int) -> None:
        self.held = slot
        self.slot.fill_(slot)


class OwnPlaces:
    """The places of one site. A freed place is used again for the same shapes and dtypes."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._places = device, list[_Place]()

    def load(self, slot: int, numbers: Sequence[Tensor]) -> None:
        """Put these numbers into a place for a slot that has none."""
        place = next((one for one in self._places if one.takes(numbers)), None)
        if place is None:
            room = tuple(torch.empty_like(one, device=self._device) for one in numbers)
            place = _Place(room, torch.full((), FREE, device=self._device))
            self._places.append(place)
        for mine, given in zip(place.tensors, numbers, strict=True):
            mine.copy_(given)
        place.hold(slot)

    def free(self, slot: int) -> None:
        for place in self._places:
            if place.held == slot:
                place.hold(FREE)

    def used(self, by_line: Tensor) -> Iterator[tuple[Tensor, tuple[Tensor, ...]]]:
        """For each place the lines that use its numbers, bool [T], and the numbers."""
        for place in self._places[: self.variant]:
            yield by_line == place.slot, place.tensors

    @property
    def variant(self) -> int:
        """How many places a pass computes: up to the last that is in use."""
        held = (i + 1 for i, place in enumerate(self._places) if place.held != FREE)
        return max(held, default=0)

    def release(self) -> None:
        self._places.clear()

    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(tensor for place in self._places for tensor in place.tensors)


class OwnOffsets:
    """What is added to results, by slot: float32 [slots + 1, N]. The last row, for lines without a
    slot, stays 0."""

    def __init__(self, num_slots: int, size: int, device: torch.device) -> None:
        self._shape, self._device = (num_slots + 1, size), device
        self._stack: Tensor | None = None  # allocated when an adapter has an offset
        self._filled: set[int] = set()

    def load(self, slot: int, offset: Tensor | None) -> None:
        """None: the slot has no offset."""
        if offset is not None:
            if self._stack is None:
                self._stack = torch.zeros(self._shape, device=self._device)
            self._stack[slot] = offset.to(self._device)
            self._filled.add(slot)
        elif slot in self._filled and self._stack is not None:
            self._stack[slot].zero_()
            self._filled.remove(slot)

    def add(self, y: Tensor, by_line: Tensor) -> Tensor:
        if not self._filled or self._stack is None:
            return y
        more = self._stack[by_line]  # slot -1 is the last row
        return (y + _by_line(more, y)).to(y.dtype)

    @property
    def variant(self) -> int:
        return int(bool(self._filled))

    def release(self) -> None:
        self._stack = None
        self._filled.clear()

    def tensors(self) -> tuple[Tensor, ...]:
        return () if self._stack is None else (self._stack,)


def where(mine: Tensor, own: Tensor, y: Tensor) -> Tensor:
    """Lines [T, ...] of `own` where `mine` [T] is True, else those of y."""
    return torch.where(mine.view(-1, *(1,) * (y.dim() - 1)), own.to(y.dtype), y)


def _by_line(more: Tensor, y: Tensor) -> Tensor:
    """[T, N] as a view that broadcasts with y [T, ..., N]."""
    return more.view(len(y), *(1,) * (y.dim() - 2), -1)
