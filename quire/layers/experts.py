"""A mixture of experts: the router, the experts that tokens chose, and the one they share."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from quire.backends.ops import ExpertsOp
from quire.layer_plan import ExpertsPlan
from quire.layers.linear import Linear
from quire.layers.mlp import GatedMLP, PlainMLP
from quire.layers.tp import TensorParallel


class Router:
    """Which experts a token takes, and how much each of them counts. In float32: a choice hangs
    on small differences."""

    def __init__(self, weight: Tensor, plan: ExpertsPlan) -> None:
        """weight float32 [E, H]"""
        self._weight, self._plan = weight, plan

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[T, H] -> experts int64 [T, k] and their scores float32 [T, k]."""
        scores = F.linear(x.float(), self._weight).softmax(-1)
        best, chosen = scores.topk(self._plan.per_token, -1)
        if self._plan.renormalise:
            best = best / best.sum(-1, keepdim=True)
        return chosen, best


class SharedExpert:
    """An expert that every token takes, as far as its gate is open."""

    def __init__(self, mlp: GatedMLP | PlainMLP, gate: Tensor) -> None:
        """gate float32 [1, H]"""
        self.mlp, self._gate = mlp, gate

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x.float(), self._gate).sigmoid().to(x.dtype) * self.mlp(x)


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
