"""Chooses experts, and computes those of a layer for the tokens that chose them, on any device.

x [T, H], chosen int64 [T, k] (the experts of each token) and scores float32 [T, k] -> [T, H]: the
sum of the chosen experts' results, each times its score. They are added in the order of the
experts, so a token gets the same bits in any batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.backends.generic import sigmoid
from quire.backends.linear import LinearOp
from quire.backends.ops import RowOp
from quire.layer_plan import ExpertsPlan

# Avoids a division by 0 if all scores are 0.
SMALLEST_SUM = 1e-20


class Choice:
    """Chooses experts and their scores from the router's products."""

    def __init__(self, plan: ExpertsPlan, bias: Tensor | None) -> None:
        self._plan, self._bias = plan, bias

    def __call__(self, products: Tensor) -> tuple[Tensor, Tensor]:
        plan = self._plan
        if plan.apart is not None:
            return one_by_one(products, plan.per_token, plan.apart)
        scores = products.softmax(-1) if plan.score == "softmax" else sigmoid(products)
        by = scores if self._bias is None else scores + self._bias
        chosen = self._in_best_groups(by).topk(plan.per_token, -1).indices
        best = scores.gather(-1, chosen)
        if plan.renormalise:
            best = best / (best.sum(-1, keepdim=True) + SMALLEST_SUM)
        return chosen, best if plan.factor == 1.0 else best * plan.factor

    def _in_best_groups(self, scores: Tensor) -> Tensor:
        """Scores [T, E], with -inf in groups that are not among the best."""
        plan = self._plan
        if plan.groups == plan.groups_taken:
            return scores
        grouped = scores.view(len(scores), plan.groups, -1)
        counted = grouped.topk(2 if plan.group_score == "best_two" else 1, -1).values.sum(-1)
        taken = counted.topk(plan.groups_taken, -1).indices
        left = torch.ones_like(counted, dtype=torch.bool).scatter_(-1, taken, False)
        return grouped.masked_fill(left[..., None], -torch.inf).flatten(-2)


def one_by_one(products: Tensor, count: int, apart: float) -> tuple[Tensor, Tensor]:
    """The best `count` experts; the score of each is its part of a softmax over those not chosen
    before it whose products are close to its own (ExpertsPlan.apart)."""
    left, chosen, scores = products, list[Tensor](), list[Tensor]()
    for _ in range(count):
        best, at = left.max(-1, keepdim=True)
        is_far = (best - products) / products.abs().clamp(min=best) > apart
        chosen.append(at)
        scores.append(left.masked_fill(is_far, -torch.inf).softmax(-1).gather(-1, at))
        left = left.scatter(-1, at, -torch.inf)
    return torch.cat(chosen, -1), torch.cat(scores, -1)


class LoopedExperts:
    """Computes one expert after the other, over its own tokens: for a host, which knows how many.

    `padded`: the number of rows to run for so many tokens. `narrow` is called with the tokens that
    the next products compute, and with None at the end."""

    def __init__(
        self,
        gate: RowOp,
        ups: Sequence[LinearOp],
        downs: Sequence[LinearOp],
        padded: Callable[[int], int],
        narrow: Callable[[Tensor | None], None] | None = None,
    ) -> None:
        self._gate, self._pairs = gate, tuple(zip(ups, downs, strict=True))
        self._padded, self._narrow = padded, narrow

    def by(
        self,
        ups: Sequence[LinearOp],
        downs: Sequence[LinearOp],
        narrow: Callable[[Tensor | None], None],
    ) -> LoopedExperts:
        """The same experts with other products."""
        return LoopedExperts(self._gate, ups, downs, self._padded, narrow)

    def __call__(self, x: Tensor, chosen: Tensor, scores: Tensor) -> Tensor:
        flat, per_token = chosen.flatten(), chosen.shape[1]
        by_expert = flat.argsort(stable=True)
        counts = torch.bincount(flat, minlength=len(self._pairs)).tolist()
        out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        first = 0
        for (up, down), count in zip(self._pairs, counts, strict=True):
            pairs, first = by_expert[first : first + count], first + count
            if count:
                tokens = pairs // per_token
                taken = x.index_select(0, tokens)
                if more := self._padded(count) - count:
                    taken = torch.cat([taken, taken[:1].expand(more, -1)])
                if self._narrow is not None:
                    self._narrow(tokens)
                made = down(self._gate(up(taken)))[:count]
                out.index_add_(0, tokens, made.float() * scores.view(-1)[pairs, None])
        if self._narrow is not None:
            self._narrow(None)
        return out.to(x.dtype)


class GroupedExperts:
    """All experts by grouped products, without reading the choice from the device: the launches are
    the same for every choice, so passes can be captured."""

    def __init__(self, gate: RowOp, ups: Tensor, downs: Tensor) -> None:
        """ups [E, 2 I, H] (or I without a gate) and downs [E, H, I], in bfloat16."""
        self._gate, self._ups, self._downs = gate, ups, downs

    def __call__(self, x: Tensor, chosen: Tensor, scores: Tensor) -> Tensor:
        # A token's experts in ascending order, which is the order of the sum below.
        chosen, order = chosen.sort(-1)
        flat, per_token = chosen.flatten(), chosen.shape[1]
        by_expert = flat.argsort(stable=True)
        counts = torch.zeros(len(self._ups), dtype=torch.int32, device=x.device)
        counts.scatter_add_(0, flat, torch.ones_like(flat, dtype=torch.int32))
        ends = counts.cumsum(0, dtype=torch.int32)
        taken = x.index_select(0, by_expert // per_token)
        made = self._gate(F.grouped_mm(taken, self._ups.mT, offs=ends))
        made = F.grouped_mm(made, self._downs.mT, offs=ends)
        back = torch.empty_like(made).index_copy_(0, by_expert, made)
        weighed = back.view(len(x), per_token, -1).float() * scores.gather(1, order)[..., None]
        total = weighed[:, 0]
        for i in range(1, per_token):
            total = total + weighed[:, i]
        return total.to(x.dtype)


class EveryExpert:
    """Computes every expert for every token, with a score of 0 for those not chosen: for dtypes
    that grouped products do not support. As many times the work as there are experts."""

    def __init__(self, gate: RowOp, ups: Sequence[LinearOp], downs: Sequence[LinearOp]) -> None:
        self._gate, self._pairs = gate, tuple(zip(ups, downs, strict=True))

    def by(
        self,
        ups: Sequence[LinearOp],
        downs: Sequence[LinearOp],
        narrow: Callable[[Tensor | None], None],
    ) -> EveryExpert:
        """The same experts with other products, which get all tokens."""
        return EveryExpert(self._gate, ups, downs)

    def __call__(self, x: Tensor, chosen: Tensor, scores: Tensor) -> Tensor:
        weights = torch.zeros(len(x), len(self._pairs), device=x.device)
        weights.scatter_(1, chosen, scores)
        out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        for expert, (up, down) in enumerate(self._pairs):
            out += down(self._gate(up(x))).float() * weights[:, expert, None]
        return out.to(x.dtype)
