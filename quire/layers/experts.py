"""A mixture of experts: the router, the experts that tokens chose, and the one they share."""

from __future__ import annotations

import torch
from torch import Tensor

from quire.backends.ops import ExpertsOp
from quire.layer_plan import ExpertsPlan
from quire.layers.linear import Linear
from quire.layers.mlp import GatedMLP, PlainMLP
from quire.layers.tp import TensorParallel

# Keeps the sum of scores that are all 0 from being divided by.
_SMALLEST_SUM = 1e-20


class Router:
    """Which experts a token takes, and how much each of them counts. In float32: a choice hangs
    on small differences."""

    def __init__(
        self, product: Linear, plan: ExpertsPlan, choice_bias: Tensor | None = None
    ) -> None:
        """`product` is of float32; `choice_bias` float32 [E] is added to the scores where the best
        are chosen."""
        self._product, self._plan, self._choice_bias = product, plan, choice_bias

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[T, H] -> experts int64 [T, k] and their scores float32 [T, k]."""
        plan = self._plan
        products = self._product(x.float())
        scores = products.softmax(-1) if plan.score == "softmax" else products.sigmoid()
        by = scores if self._choice_bias is None else scores + self._choice_bias
        chosen = self._in_best_groups(by).topk(plan.per_token, -1).indices
        best = scores.gather(-1, chosen)
        if plan.renormalise:
            best = best / (best.sum(-1, keepdim=True) + _SMALLEST_SUM)
        return chosen, best if plan.factor == 1.0 else best * plan.factor

    def _in_best_groups(self, scores: Tensor) -> Tensor:
        """Scores [T, E], those of groups that are not among the best as low as can be."""
        plan = self._plan
        if plan.groups == plan.groups_taken:
            return scores
        grouped = scores.view(len(scores), plan.groups, -1)
        counted = grouped.topk(2 if plan.group_score == "best_two" else 1, -1).values.sum(-1)
        taken = counted.topk(plan.groups_taken, -1).indices
        left = torch.ones_like(counted, dtype=torch.bool).scatter_(-1, taken, False)
        return grouped.masked_fill(left[..., None], -torch.inf).flatten(-2)


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
