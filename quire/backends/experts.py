"""Which experts tokens choose, and those of a layer over the tokens that chose them, on any device.

x [T, H], chosen int64 [T, k] (experts of each token) and scores float32 [T, k] -> [T, H]: the sum
of what the chosen experts make of a token, each times its score. Sums are added in the order of
the experts, so a token gets the same bits whatever else is in the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.backends.linear import LinearOp
from quire.backends.ops import RowOp
from quire.layer_plan import ExpertsPlan

# Keeps the sum of scores that are all 0 from being divided by.
SMALLEST_SUM = 1e-20


class Choice:
    """Which experts a token takes by the products of the router, and how much each counts."""

    def __init__(self, plan: ExpertsPlan, bias: Tensor | None) -> None:
        self._plan, self._bias = plan, bias

    def __call__(self, products: Tensor) -> tuple[Tensor, Tensor]:
        plan = self._plan
        scores = products.softmax(-1) if plan.score == "softmax" else products.sigmoid()
        by = scores if self._bias is None else scores + self._bias
        chosen = self._in_best_groups(by).topk(plan.per_token, -1).indices
        best = scores.gather(-1, chosen)
        if plan.renormalise:
            best = best / (best.sum(-1, keepdim=True) + SMALLEST_SUM)
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


class LoopedExperts:
    """One expert after the other, over its own tokens: for a host that knows how many they are.

    `padded` tells how many rows to run for so many tokens. `narrow` is told which tokens the
    products get next, and None when they are done."""

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
        """The same by other products."""
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
    """All experts by grouped products, without asking the device who chose what: every launch is
    the same for every routing, so passes can be captured."""

    def __init__(self, gate: RowOp, ups: Tensor, downs: Tensor) -> None:
        """ups [E, 2 I, H] (or I without a gate) and downs [E, H, I], in bfloat16."""
        self._gate, self._ups, self._downs = gate, ups, downs

    def __call__(self, x: Tensor, chosen: Tensor, scores: Tensor) -> Tensor:
        # A token's experts in ascending order: what is summed below is summed in that order.
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
    """Every expert over every token, with a score of 0 where it was not chosen: for types that
    grouped products do not take. As many times the work as there are experts."""

    def __init__(self, gate: RowOp, ups: Sequence[LinearOp], downs: Sequence[LinearOp]) -> None:
        self._gate, self._pairs = gate, tuple(zip(ups, downs, strict=True))

    def by(
        self,
        ups: Sequence[LinearOp],
        downs: Sequence[LinearOp],
        narrow: Callable[[Tensor | None], None],
    ) -> EveryExpert:
        """The same by other products, which get all tokens."""
        return EveryExpert(self._gate, ups, downs)

    def __call__(self, x: Tensor, chosen: Tensor, scores: Tensor) -> Tensor:
        weights = torch.zeros(len(x), len(self._pairs), device=x.device)
        weights.scatter_(1, chosen, scores)
        out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        for expert, (up, down) in enumerate(self._pairs):
            out += down(self._gate(up(x))).float() * weights[:, expert, None]
        return out.to(x.dtype)
