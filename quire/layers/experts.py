"""A mixture of experts: the router, the experts that it chooses for each token, and an expert that
all tokens share."""

from __future__ import annotations

import torch
from torch import Tensor

from quire.backends.generic import sigmoid
from quire.backends.ops import ChoiceOp, ExpertsOp
from quire.layers.linear import Linear
from quire.layers.mlp import GatedMLP, PlainMLP
from quire.layers.norm import Norm
from quire.layers.tp import TensorParallel


class Router:
    """Chooses each token's experts and their scores; in float32, as small differences decide."""

    def __init__(
        self,
        product: Linear,
        choose: ChoiceOp,
        norm: Norm | None = None,
        factors: Tensor | None = None,
    ) -> None:
        """The weight of `product` is float32. `norm`: of what it reads, which is then divided by
        the root of its size. `factors`: of the scores of single experts, float32."""
        self._product, self._choose, self._norm, self._factors = product, choose, norm, factors

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[T, H] -> experts int64 [T, k] and their scores float32 [T, k]."""
        x = x.float()
        if self._norm is not None:
            x = self._norm(x).mul_(x.shape[1] ** -0.5)
        chosen, scores = self._choose(self._product(x))
        return chosen, scores if self._factors is None else scores * self._factors[chosen]


class SharedExpert:
    """An expert that every token uses, times a factor, and times the sigmoid of its gate if it has
    one."""

    def __init__(self, mlp: GatedMLP | PlainMLP, gate: Linear | None, factor: float = 1.0) -> None:
        """`gate` has a float32 weight and gives one number for each token."""
        self.mlp, self._gate, self._factor = mlp, gate, factor

    def __call__(self, x: Tensor) -> Tensor:
        made = self.mlp(x) if self._factor == 1.0 else self.mlp(x) * self._factor
        return made if self._gate is None else sigmoid(self._gate(x.float())).to(x.dtype) * made


class ScoredInputs:
    """Experts that read each token times its score: a row for every choice of a token."""

    def __init__(self, experts: ExpertsOp) -> None:
        self._experts = experts

    def __call__(self, x: Tensor, chosen: Tensor, scores: Tensor) -> Tensor:
        rows = (x[:, None].float() * scores[..., None]).to(x.dtype).flatten(0, 1)
        made = self._experts(rows, chosen.view(-1, 1), torch.ones_like(scores).view(-1, 1))
        return made if chosen.shape[1] == 1 else made.view(*chosen.shape, -1).sum(1)


class Experts:
    """x -> the sum of score * expert(x) over the chosen experts, plus the shared expert."""

    def __init__(
        self,
        router: Router,
        experts: ExpertsOp,
        products: tuple[Linear, Linear],
        shared: SharedExpert | None,
        tp: TensorParallel,
    ) -> None:
        """`products` are the two products of the first expert."""
        self.router, self.experts, self.products = router, experts, products
        self.shared, self.tp = shared, tp

    def __call__(self, x: Tensor, routed_by: Tensor | None = None) -> Tensor:
        """`routed_by`: what the router reads instead of x."""
        chosen, scores = self.router(x if routed_by is None else routed_by)
        made = self.tp.all_reduce(self.experts(x, chosen, scores))
        return made if self.shared is None else made + self.shared(x)
