"""Chooses experts in one launch after the router's product."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from quire.backends.experts import SMALLEST_SUM, Choice
from quire.backends.ops import ChoiceOp
from quire.backends.triton.experts import TOKENS_AT_ONCE, choice_constants
from quire.backends.triton.experts_kernels import choose_experts
from quire.layer_plan import ExpertsPlan


def choice_by(plan: ExpertsPlan, bias: Tensor | None) -> ChoiceOp:
    """The op for a plan; experts in groups of which only some may be taken, and those that are
    chosen one by one, are left to torch."""
    if plan.groups != plan.groups_taken or plan.apart is not None:
        return Choice(plan, bias)
    return OneLaunch(plan, bias)


class OneLaunch:
    """products float32 [T, E] -> chosen int64 [T, k], scores float32 [T, k]."""

    def __init__(self, plan: ExpertsPlan, bias: Tensor | None) -> None:
        self._plan, self._bias = plan, bias

    def __call__(self, products: Tensor) -> tuple[Tensor, Tensor]:
        count, per_token, products = len(products), self._plan.per_token, products.contiguous()
        scores = products.new_empty(count, per_token)
        chosen = torch.empty_like(scores, dtype=torch.int64)
        choose_experts[(triton.cdiv(count, TOKENS_AT_ONCE),)](
            *(products, products if self._bias is None else self._bias, chosen, scores),
            *(count, float(self._plan.factor), SMALLEST_SUM),
            **choice_constants(self._plan),
        )
        return chosen, scores
