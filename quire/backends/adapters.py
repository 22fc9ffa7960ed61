"""LoRA adapters on a CPU: lines sorted by slot, and two small products for each slot in use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch
from torch import Tensor

from quire.backends.adapted_pairs import LoopedPairs
from quire.backends.adapter_ops import (
    AdaptedPairs,
    AdaptedProduct,
    AdapterLines,
    Added,
    ExpertSlots,
    OwnNumbers,
)
from quire.backends.linear import LinearOp
from quire.backends.ops import ExpertsOp, RowOp
from quire.request import Ints


class LoopedAdapters:
    """Computes adapters in loops over the slots in use; `padded`: rows to run for so many lines."""

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
        return LoopedRows(self._make_linear, self._padded, num_rows)

    def norm(self, with_weight: Callable[[Tensor], RowOp], weight: Tensor) -> AdaptedProduct:
        return LoopedNorm(with_weight)

    def pairs(self, heads: int, plain: int, value: int) -> AdaptedPairs:
        def make(rows: int, columns: int) -> AdaptedProduct:
            return self.product((rows,), columns, None, seldom=True)

        return LoopedPairs(make, (heads, plain, value))

    def experts(self, base: ExpertsOp, up_rows: tuple[int, ...], hidden: int) -> ExpertSlots | None:
        return None

    def lines(self, slots: Ints) -> AdapterLines | None:
        return SortedLines.of(slots) if (slots >= 0).any() else None


@dataclass(frozen=True, slots=True)
class SortedLines:
    """The slots of all lines, and for each slot in use the indices of its lines."""

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
        """The slots of these lines, in their order."""
        return SortedLines.of(self.slots[lines])


@dataclass(frozen=True, slots=True)
class _Expand:
    """What is added to one part of a product (`columns` of y), from columns `ranks` of A x."""

    columns: slice
    ranks: slice
    multiply: LinearOp
    less: Tensor | None  # factor - 1


@dataclass(frozen=True, slots=True)
class _Slot:
    shrink: LinearOp | None
    expands: tuple[_Expand, ...]
    dtype: torch.dtype
    rows: Tensor | None = None  # rows of its own, with the product `instead`
    instead: LinearOp | None = None
    offset: Tensor | None = None


class LoopedProduct(AdaptedProduct):
    """Computes one slot after the other, over its own lines: for a host, which knows them."""

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
        self._slots[slot] = _Slot(shrink, expands, added[0].a.dtype)

    def load_own(self, slot: int, own: OwnNumbers) -> None:
        have = self._slots.get(slot) or _Slot(None, (), torch.float32)
        if own.rows is not None and own.weight is not None:
            bias = None if self._bias is None else self._bias.index_select(0, own.rows)
            instead = self._make_linear(own.weight, bias)
            have = replace(have, rows=own.rows, instead=instead, dtype=own.weight.dtype)
        self._slots[slot] = replace(have, offset=own.offset)

    def add(self, x: Tensor, y: Tensor, lines: AdapterLines) -> Tensor:
        for slot, at in cast(SortedLines, lines).groups:
            if (found := self._slots.get(slot)) is not None:
                # The adapter's dtype may be another than that of x.
                taken = padded_lines(x.index_select(0, at), self._padded).to(found.dtype)
                if found.instead is not None and found.rows is not None:
                    made = found.instead(taken)[: len(at)]
                    y[at[:, None], found.rows] = made.to(y.dtype)
                if found.shrink is not None:
                    made = found.shrink(taken)
                    for expand in found.expands:
                        self._expand(y[:, expand.columns], at, expand, made)
                if found.offset is not None:
                    y.index_copy_(0, at, (y.index_select(0, at) + found.offset).to(y.dtype))
        return y

    def _expand(self, y: Tensor, at: Tensor, expand: _Expand, made: Tensor) -> None:
        more = expand.multiply(made[:, expand.ranks].contiguous())[: len(at)]
        if expand.less is not None:
            plain = y.index_select(0, at).float()
            if self._bias is not None:
                plain -= self._bias[expand.columns].float()
            more = more.float() + plain.mul_(expand.less)
        y.index_add_(0, at, more.to(y.dtype))

    @property
    def variant(self) -> int:
        return int(bool(self._slots))

    def release(self) -> None:
        self._slots.clear()

    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(
            tensor
            for slot in self._slots.values()
            for op in (slot.shrink, slot.instead, *(expand.multiply for expand in slot.expands))
            for tensor in (() if op is None else op.tensors())
        )


class LoopedRows(AdaptedProduct):
    """Slots of an embedding, where A is looked up."""

    def __init__(
        self,
        make_linear: Callable[[Tensor, Tensor | None], LinearOp],
        padded: Callable[[int], int],
        num_rows: int,
    ) -> None:
        self._make_linear, self._padded, self._num_rows = make_linear, padded, num_rows
        self._slots: dict[int, tuple[Tensor, LinearOp]] = {}
        self._own: dict[int, tuple[Tensor, Tensor]] = {}  # by token its row or -1; the rows

    def load(self, slot: int, added: Sequence[Added]) -> None:
        self._slots.pop(slot, None)
        self._own.pop(slot, None)
        for one in added:
            self._slots[slot] = one.a.t().contiguous(), self._make_linear(one.b, None)

    def load_own(self, slot: int, own: OwnNumbers) -> None:
        if own.rows is None or own.weight is None or own.offset is not None:
            raise LookupError("an embedding has rows alone. This is a bug.")
        places = torch.full((self._num_rows,), -1)
        places[own.rows] = torch.arange(len(own.rows))
        self._own[slot] = places, own.weight

    def add(self, x: Tensor, y: Tensor, lines: AdapterLines) -> Tensor:
        for slot, at in cast(SortedLines, lines).groups:
            tokens = x.index_select(0, at)
            if (own := self._own.get(slot)) is not None:
                places = own[0].index_select(0, tokens)
                has = places >= 0
                y[at[has]] = own[1].index_select(0, places[has])
            if (found := self._slots.get(slot)) is not None:
                table, expand = found
                rows = table.index_select(0, tokens)
                y.index_add_(0, at, expand(padded_lines(rows, self._padded))[: len(at)])
        return y

    @property
    def variant(self) -> int:
        return int(bool(self._slots or self._own))

    def release(self) -> None:
        self._slots.clear()
        self._own.clear()

    def tensors(self) -> tuple[Tensor, ...]:
        low_rank = (t for table, op in self._slots.values() for t in (table, *op.tensors()))
        return (*low_rank, *(t for pair in self._own.values() for t in pair))


class LoopedNorm(AdaptedProduct):
    """Slots of a norm: lines with an adapter are normed again."""

    def __init__(self, with_weight: Callable[[Tensor], RowOp]) -> None:
        """`with_weight` makes the norm with another weight."""
        self._with_weight = with_weight
        self._slots: dict[int, tuple[RowOp | None, OwnNumbers]] = {}

    def load(self, slot: int, added: Sequence[Added]) -> None:
        self._slots.pop(slot, None)

    def load_own(self, slot: int, own: OwnNumbers) -> None:
        norm = None if own.weight is None else self._with_weight(own.weight)
        self._slots[slot] = norm, own

    def add(self, x: Tensor, y: Tensor, lines: AdapterLines) -> Tensor:
        for slot, at in cast(SortedLines, lines).groups:
            if (found := self._slots.get(slot)) is not None:
                norm, own = found
                made = y.index_select(0, at) if norm is None else norm(x.index_select(0, at))
                if own.offset is not None:
                    made = made + own.offset
                y.index_copy_(0, at, made.to(y.dtype))
        return y

    @property
    def variant(self) -> int:
        return int(bool(self._slots))

    def release(self) -> None:
        self._slots.clear()

    def tensors(self) -> tuple[Tensor, ...]:
        owns = (own for _, own in self._slots.values())
        return tuple(t for own in owns for t in (own.weight, own.offset) if t is not None)


def padded_lines(x: Tensor, padded: Callable[[int], int]) -> Tensor:
    """x with padding for products: copies of its first line."""
    more = padded(len(x)) - len(x)
    return torch.cat([x, x[:1].expand(more, -1)]) if more else x
