"""A mixture of experts: the router, the experts that tokens chose, and the one they share."""

from __future__ import annotations

from torch import Tensor

from quire.backends.ops import ChoiceOp, ExpertsOp
from quire.layers.linear import Linear
from quire.layers.mlp import GatedMLP, PlainMLP
from quire.layers.tp import TensorParallel


class Router:
    """Which experts a token takes, and how much each of them counts. In float32: a choice hangs
    on small differences."""

    def __init__(self, product: Linear, choose: ChoiceOp) -> None:
        """`product` is of float32."""
        self._product, self._choose = product, choose

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[T, H] -> experts int64 [T, k] and their scores float32 [T, k]."""
        return self._choose(self._product(x.float()))


class SharedExpert:
    """An expert that every token takes, as far as its gate is open, if it has one."""

    def __init__(self, mlp: GatedMLP | PlainMLP, gate: Linear | None) -> None:
        """The product of `gate`, of float32, is one number a token."""
        self.mlp, self._gate = mlp, gate

    def __call__(self, x: Tensor) -> Tensor:
        if self._gate is None:
            return self.mlp(x)
        return self._gate(x.float()).sigmoid().to(x.dtype) * self.mlp(x)


class Experts:
    """x -> sum of score * expert(x) over the experts that were chosen, and the shared one."""

    def __init__(
        self,
        router: Router,
        experts: ExpertsOp,
        products: tuple[Linear, Linear],
        shared: SharedExpert | None,
        tp: TensorParallel,
    ) -> None:
        """`products` are those of the first expert."""
        self.router, self.experts, self.products = router, experts, products
        self.shared, self.tp = shared, tp

    def __call__(self, x: Tensor) -> Tensor:
        made = self.tp.all_reduce(self.experts(x, *self.router(x)))
        return made if self.shared is None else made + self.shared(x)
