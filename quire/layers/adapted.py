"""Products with slots for LoRA adapters, made when a model is built for use with adapters.

The slot of each line of a pass is set once before the pass, for all products. The head computes
other lines than the rest, so its slots are set before it is called. A model that is built without
adapters contains none of these classes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from quire.backends.adapter_ops import (
    AdaptedPairs,
    AdaptedProduct,
    AdapterKernels,
    AdapterLines,
    Added,
    ExpertSlots,
    OwnNumbers,
)
from quire.backends.experts import EveryExpert, LoopedExperts
from quire.backends.linear import Gate, LinearOp
from quire.backends.ops import ExpertsOp, HeadShape, HeadsOp, RowOp
from quire.layers.heads import NormedHeads
from quire.layers.linear import Linear
from quire.layers.norm import LayerNorm, Norm, RMSNorm

_SIDES = ("gate_up", "down")  # the products of an expert


@dataclass(slots=True)
class Current:
    """The slots of the lines that are computed at present. None: no line has an adapter."""

    lines: AdapterLines | None = None


class AdaptedLinear:
    """A product, plus what adapters add to its result."""

    def __init__(self, base: LinearOp, product: AdaptedProduct, current: Current) -> None:
        self._base, self._product, self._current = base, product, current

    def __call__(self, x: Tensor) -> Tensor:
        lines = self._current.lines
        return self._base(x) if lines is None else self._product.multiply(self._base, x, lines)

    def gated(self, gate: Gate) -> RowOp:
        """The product of gate and up with adapters, followed by activation(gate) * up."""

        unchanged = gate.behind(self._base)

        def opened(x: Tensor) -> Tensor:
            lines = self._current.lines
            if lines is None:
                return unchanged(x)
            return self._product.multiply_gated(self._base, gate, x, lines)

        return opened

    def write_rows(self, first: int, rows: Tensor) -> None:
        self._base.write_rows(first, rows)

    def read_rows(self, first: int, count: int) -> Tensor:
        return self._base.read_rows(first, count)

    def tensors(self) -> tuple[Tensor, ...]:
        return self._base.tensors()


class AdaptedNorm(Norm):
    """A norm. Lines whose adapter has a norm of its own at this place get that instead."""

    def __init__(self, base: Norm, product: AdaptedProduct, current: Current) -> None:
        self._base, self._product, self._current = base, product, current

    def __call__(self, x: Tensor) -> Tensor:
        return self._changed(x, self._base(x))

    def after_adding(self, x: Tensor, residual: Tensor) -> Tensor:
        return self._changed(residual, self._base.after_adding(x, residual))

    def _changed(self, x: Tensor, y: Tensor) -> Tensor:
        lines = self._current.lines
        return y if lines is None else self._product.add(x, y, lines)


class AdaptedHeads:
    """Norms of q and k for each head, computed by `norm` and not by the kernel that rotates heads.
    They are used in passes where a loaded adapter has norms of its own."""

    def __init__(self, norm: RowOp, products: Sequence[AdaptedProduct], current: Current) -> None:
        self.norm, self._products, self._current = norm, products, current

    @property
    def are_changed(self) -> bool:
        return self._current.lines is not None and any(one.variant for one in self._products)


class AdaptedExperts:
    """The experts of a layer, with what adapters add to their products."""

    def __init__(self, base: ExpertsOp, slots: ExpertSlots, current: Current) -> None:
        self._base, self._slots, self._current = base, slots, current

    def __call__(self, x: Tensor, chosen: Tensor, scores: Tensor) -> Tensor:
        lines = self._current.lines
        if lines is None or not self._slots.variant:
            return self._base(x, chosen, scores)
        return self._slots.compute(x, chosen, scores, lines)


class AdaptedHeadProducts:
    """A product for each head, plus what adapters add to its result."""

    def __init__(
        self,
        base: HeadsOp,
        add: Callable[[Tensor, Tensor, AdapterLines], None],
        current: Current,
    ) -> None:
        self._base, self._add, self._current = base, add, current

    def __call__(self, x: Tensor, out: Tensor) -> None:
        self._base(x, out)
        if self._current.lines is not None:
            self._add(x, out, self._current.lines)


class AdapterSites:
    """All products of a model that have slots, by name."""

    def __init__(
        self,
        kernels: AdapterKernels,
        rows: Mapping[str, tuple[int, ...]],
        columns: Mapping[str, int],
        heads: frozenset[str] = frozenset({"head"}),
        norms: frozenset[str] = frozenset(),
        seldom: Collection[str] = (),
    ) -> None:
        """`rows` of the parts of each product, and its number of `columns`. Products that are not
        named there get no slots. `heads` make logits, of other lines than the rest. Few adapters
        change the products in `heads` and `seldom`, so their memory is taken only when one does."""
        self.kernels, self._rows, self._columns, self._heads = kernels, rows, columns, heads
        self._norms, self._seldom = norms, {*heads, *seldom}
        self._current, self._pass = Current(), Current()
        self._changes_experts = False
        self._linears: dict[str, AdaptedLinear] = {}
        self._products: dict[str, AdaptedProduct] = {}
        self._pairs: dict[str, AdaptedPairs] = {}
        self._experts: dict[str, ExpertSlots] = {}  # all experts of a layer together
        self._variants: dict[Hashable, int] = {}
        self.variant = 0  # which kernels run: another number where loaded adapters change that

    def around(self, name: str, base: LinearOp, bias: Tensor | None) -> LinearOp:
        """The op `base` of the product of this name, with slots if the product may have some."""
        if name not in self._rows:
            return base
        made = AdaptedLinear(base, self._product(name, bias, base), self._current)
        self._linears[name] = made
        return made

    def around_norm(self, name: str, base: RMSNorm | LayerNorm) -> Norm:
        """The norm of this name, with slots if it may have some."""
        if name not in self._norms:
            return base
        made = self._products[name] = self.kernels.norm(base.with_weight, base.weight)
        return AdaptedNorm(base, made, self._current)

    def around_heads(
        self, names: Sequence[str], norms: Sequence[RMSNorm], shape: HeadShape
    ) -> AdaptedHeads:
        """Norms of q and k with slots, for use in place of those in the kernel that rotates."""
        apart = NormedHeads(shape, *map(self.around_norm, names, norms))
        return AdaptedHeads(apart, [self._products[name] for name in names], self._current)

    def around_pairs(
        self, name: str, base: tuple[HeadsOp, HeadsOp], sizes: tuple[int, int, int]
    ) -> tuple[HeadsOp, HeadsOp]:
        """The products of latents of this name, with slots; `sizes`: heads, and the rows of each
        that make keys and values."""
        made, (to_rows, to_values) = self.kernels.pairs(*sizes), base
        self._pairs[name] = made
        return (
            AdaptedHeadProducts(to_rows, made.add_to_rows, self._current),
            AdaptedHeadProducts(to_values, made.add_to_values, self._current),
        )

    def experts(
        self,
        name: str,
        base: ExpertsOp,
        pairs: Sequence[tuple[Linear, Linear]],
    ) -> ExpertsOp:
        """The experts of this name, which `base` computes with these products, with slots if they
        may have some: one set for all experts, or one for each product if `base` calls each."""
        up, down = (f"{name}.0.{side}" for side in _SIDES)
        if down not in self._rows:
            return base
        if isinstance(base, LoopedExperts | EveryExpert):
            ups, downs = (
                [
                    self.around(f"{name}.{i}.{end}", pair[side].multiply, pair[side].bias)
                    for i, pair in enumerate(pairs)
                ]
                for side, end in enumerate(_SIDES)
            )
            return base.by(ups, downs, self._narrow)
        made = self.kernels.experts(base, self._rows[up], self._columns[up])
        if made is None:
            raise LookupError(f"{name}: experts that adapters cannot change. This is a bug.")
        self._experts[name] = made
        return AdaptedExperts(base, made, self._current)

    def behind_gate(self, name: str, gate: Gate, product: LinearOp) -> RowOp:
        """The product of this name, which was made before, followed by activation(gate) * up."""
        made = self._linears.get(name)
        return gate.behind(product) if made is None else made.gated(gate)

    def after(self, name: str, bias: Tensor | None) -> Callable[[Tensor, Tensor], Tensor]:
        """Slots for a product that is computed elsewhere: a function of its input x [T, K] and its
        result y [T, N] that returns y with what adapters add."""
        product, current = self._product(name, bias), self._current

        def add(x: Tensor, y: Tensor) -> Tensor:
            return y if current.lines is None else product.add(x, y, current.lines)

        return add

    def _product(
        self, name: str, bias: Tensor | None, base: LinearOp | None = None
    ) -> AdaptedProduct:
        sizes, seldom = (self._rows[name], self._columns[name]), name in self._seldom
        made = self.kernels.product(*sizes, bias, seldom=seldom, base=base)
        self._products[name] = made
        return made

    def around_rows(self, name: str, base: RowOp, num_rows: int, width: int) -> RowOp:
        """An embedding, with slots."""
        made = self._products[name] = self.kernels.embedding(num_rows, width)
        current = self._current

        def look_up(token_ids: Tensor) -> Tensor:
            y, lines = base(token_ids), current.lines
            return y if lines is None else made.add(token_ids, y, lines)

        return look_up

    def use(self, lines: AdapterLines | None) -> None:
        """Set the slots of the lines that are computed from now on."""
        self._current.lines = self._pass.lines = lines

    def _narrow(self, tokens: Tensor | None) -> None:
        """The next products get only these lines of the pass. None: all lines again."""
        lines = self._pass.lines
        if tokens is not None and lines is not None:
            lines = lines.take(tokens.numpy()) if self._changes_experts else None
        self._current.lines = lines

    def load(
        self,
        slot: int,
        added: Mapping[str, Sequence[Added]],
        own: Mapping[str, OwnNumbers] | None = None,
    ) -> None:
        """Put an adapter into a slot, in place of what was there."""
        for name, product in self._products.items():
            product.load(slot, added.get(name, ()))
        for name, pairs in self._pairs.items():
            pairs.load(slot, added.get(name, ()))
        for name, numbers in (own or {}).items():
            self._products[name].load_own(slot, numbers)
        for name, experts in self._experts.items():
            experts.load(slot, *(_of_experts(added, name, side) for side in _SIDES))
        products = self._products.items()
        found = tuple(one.variant for one in self._slots)
        self.variant = self._variants.setdefault(found, len(self._variants))
        self._changes_experts = any(one.variant for name, one in products if ".experts." in name)

    @property
    def _slots(self) -> tuple[AdaptedProduct | AdaptedPairs | ExpertSlots, ...]:
        return (*self._products.values(), *self._pairs.values(), *self._experts.values())

    @property
    def changes_head(self) -> bool:
        """Whether a loaded adapter changes the head."""
        return any(self._products[name].variant for name in self._heads & self._products.keys())

    def release(self) -> None:
        """Empty all slots and give back their memory until an adapter is loaded again."""
        self.use(None)
        for one in self._slots:
            one.release()


def _of_experts(
    added: Mapping[str, Sequence[Added]], name: str, side: str
) -> dict[int, Sequence[Added]]:
    """What an adapter adds to one product of each expert, by the number of the expert."""
    start, end = f"{name}.", f".{side}"
    return {
        int(site.removeprefix(start).removesuffix(end)): some
        for site, some in added.items()
        if site.startswith(start) and site.endswith(end)
    }
