"""LoRA adapters on a CPU: lines sorted by slot, two small products for each slot that occurs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor

from quire.backends.adapter_ops import AdaptedProduct, AdapterLines, Added
from quire.backends.linear import LinearOp
from quire.request import Ints


class LoopedAdapters:
    """Adapters by loops over those that occur; `padded` tells how many rows to run for so many
    lines."""

    def __init__(
        self,
        make_linear: Callable[[Tensor, Tensor | None], LinearOp],
        padded: Callable[[int], int],
    ) -> None:
        self._make_linear, self._padded = make_linear, padded

    def product(
        self,
        rows: tuple[int, ...],
        columns: int,
        bias: Tensor | None,
        *,
        seldom: bool,
        base: LinearOp | None = None,
    ) -> AdaptedProduct:
        return LoopedProduct(self._make_linear, self._padded, bias)

    def embedding(self, num_rows: int, width: int) -> AdaptedProduct:
        return LoopedRows(self._make_linear, self._padded)

    def lines(self, slots: Ints) -> AdapterLines | None:
        return SortedLines.of(slots) if (slots >= 0).any() else None


@dataclass(frozen=True, slots=True)
class SortedLines:
    """The lines of each slot that occurs: slot, and where its lines are."""

    slots: Ints
    groups: tuple[tuple[int, Tensor], ...]

    @classmethod
    def of(cls, slots: Ints) -> SortedLines:
        """[1 -1 0 1] -> slot 0: [2], slot 1: [0 3]"""
        order = np.argsort(slots, kind="stable")
        order = order[np.searchsorted(slots[order], 0) :]
        numbers, starts = np.unique(slots[order], return_index=True)
        ends = [*starts[1:].tolist(), len(order)]
        groups = zip(numbers.tolist(), starts.tolist(), ends, strict=False)
        return cls(slots, tuple((slot, torch.from_numpy(order[a:b])) for slot, a, b in groups))

    def take(self, lines: Ints) -> SortedLines:
        """Of these lines, in their order."""
        return SortedLines.of(self.slots[lines])


@dataclass(frozen=True, slots=True)
class _Expand:
    """What one part of a product gets, from `ranks` of what A made."""

    columns: slice
    ranks: slice
    multiply: LinearOp
    less: Tensor | None  # factor - 1


@dataclass(frozen=True, slots=True)
class _Slot:
    shrink: LinearOp
    expands: tuple[_Expand, ...]


class LoopedProduct(AdaptedProduct):
    """One slot after the other, over its own lines: for a host that knows which they are."""

    def __init__(
        self,
        make_linear: Callable[[Tensor, Tensor | None], LinearOp],
        padded: Callable[[int], int],
        bias: Tensor | None,
    ) -> None:
        self._make_linear, self._padded, self._bias = make_linear, padded, bias
        self._slots: dict[int, _Slot] = {}

    def load(self, slot: int, added: Sequence[Added]) -> None:
        self._slots.pop(slot, None)
        if not added:
            return
        ends = np.cumsum([len(one.a) for one in added]).tolist()
        expands = tuple(
            _Expand(
                slice(one.first, one.first + len(one.b)),
                slice(end - len(one.a), end),
                self._make_linear(one.b, None),
                None if one.factor is None else one.factor - 1.0,
            )
            for one, end in zip(added, ends, strict=True)
        )
        shrink = self._make_linear(torch.cat([one.a for one in added]), None)
        self._slots[slot] = _Slot(shrink, expands)

    def add(self, x: Tensor, y: Tensor, lines: AdapterLines) -> Tensor:
        for slot, at in cast(SortedLines, lines).groups:
            if (found := self._slots.get(slot)) is not None:
                made = found.shrink(padded_lines(x.index_select(0, at), self._padded))
                for expand in found.expands:
                    self._expand(y[:, expand.columns], at, expand, made)
        return y

    def _expand(self, y: Tensor, at: Tensor, expand: _Expand, made: Tensor) -> None:
        more = expand.multiply(made[:, expand.ranks].contiguous())[: len(at)]
        if expand.less is not None:
            plain = y.index_select(0, at).float()
            if self._bias is not None:
                plain -= self._bias[expand.columns].float()
            more = (more.float() + plain.mul_(expand.less)).to(y.dtype)
        y.index_add_(0, at, more)

    @property
    def variant(self) -> int:
        return int(bool(self._slots))

    def release(self) -> None:
        self._slots.clear()

    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(
            tensor
            for slot in self._slots.values()
            for op in (slot.shrink, *(expand.multiply for expand in slot.expands))
            for tensor in op.tensors()
        )


class LoopedRows(AdaptedProduct):
    """The same for an embedding, whose A is looked up."""

    def __init__(
        self,
        make_linear: Callable[[Tensor, Tensor | None], LinearOp],
        padded: Callable[[int], int],
    ) -> None:
        self._make_linear, self._padded = make_linear, padded
        self._slots: dict[int, tuple[Tensor, LinearOp]] = {}

    def load(self, slot: int, added: Sequence[Added]) -> None:
        self._slots.pop(slot, None)
        for one in added:
            self._slots[slot] = one.a.t().contiguous(), self._make_linear(one.b, None)

    def add(self, x: Tensor, y: Tensor, lines: AdapterLines) -> Tensor:
        for slot, at in cast(SortedLines, lines).groups:
            if (found := self._slots.get(slot)) is not None:
                table, expand = found
                rows = table.index_select(0, x.index_select(0, at))
                y.index_add_(0, at, expand(padded_lines(rows, self._padded))[: len(at)])
        return y

    @property
    def variant(self) -> int:
        return int(bool(self._slots))

    def release(self) -> None:
        self._slots.clear()

    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(t for table, op in self._slots.values() for t in (table, *op.tensors()))


def padded_lines(x: Tensor, padded: Callable[[int], int]) -> Tensor:
    """As many lines as products want for so many; the rest are copies of the first."""
    more = padded(len(x)) - len(x)
    return torch.cat([x, x[:1].expand(more, -1)]) if more else x
