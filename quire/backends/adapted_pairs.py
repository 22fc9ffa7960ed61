"""What adapters add to products of latents: to queries on their way to the space of rows, and to
values, which are made of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from quire.backends.adapter_ops import AdaptedPairs, AdaptedProduct, AdapterLines, Added


def matrices_of(
    added: Sequence[Added], heads: int, plain: int, value: int
) -> tuple[Tensor, Tensor, Tensor]:
    """A [rank, K] and, by head, B of its keys [heads, plain, rank] and values [heads, value, rank],
    of all that one adapter adds."""
    a = torch.cat([one.a for one in added])
    b, at = a.new_zeros(heads * (plain + value), len(a)), 0
    for one in added:
        b[one.first : one.first + len(one.b), at : at + len(one.a)] = one.b
        at += len(one.a)
    by_head = b.view(heads, plain + value, -1)
    return a, by_head[:, :plain], by_head[:, plain:]


class LoopedPairs(AdaptedPairs):
    """A product for each head and side: for a host, which knows the lines of a slot."""

    def __init__(
        self,
        make: Callable[[int, int], AdaptedProduct],
        sizes: tuple[int, int, int],
    ) -> None:
        """`make(rows, columns)` makes the slots of a product; `sizes`: heads, plain, value."""
        self._make, self._sizes = make, sizes
        self._products: tuple[list[AdaptedProduct], list[AdaptedProduct]] = ([], [])

    def load(self, slot: int, added: Sequence[Added]) -> None:
        to_rows, to_values = self._products
        if not added:
            for one in (*to_rows, *to_values):
                one.load(slot, ())
            return
        heads, plain, value = self._sizes
        a, keys, values = matrices_of(added, *self._sizes)
        if not to_rows:
            to_rows += (self._make(a.shape[1], plain) for _ in range(heads))
            to_values += (self._make(value, a.shape[1]) for _ in range(heads))
        behind = a.t().contiguous()
        for head in range(heads):
            first = Added(0, 0, keys[head].t().contiguous(), behind)
            to_rows[head].load(slot, [first])
            to_values[head].load(slot, [Added(0, 0, a, values[head].contiguous())])

    def add_to_rows(self, x: Tensor, y: Tensor, lines: AdapterLines) -> None:
        self._add(self._products[0], x, y, lines)

    def add_to_values(self, x: Tensor, y: Tensor, lines: AdapterLines) -> None:
        self._add(self._products[1], x, y, lines)

    def _add(
        self, products: Sequence[AdaptedProduct], x: Tensor, y: Tensor, lines: AdapterLines
    ) -> None:
        for head, product in enumerate(products):
            product.add(x[:, head], y[:, head], lines)

    @property
    def variant(self) -> int:
        return int(any(one.variant for one in self._products[1]))

    def release(self) -> None:
        for products in self._products:
            products.clear()
