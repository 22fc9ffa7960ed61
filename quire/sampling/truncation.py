"""min_p, top_k and top_p: which tokens a line may still draw.

All three keep the beginning of the tokens in falling order of score, so each is a count. In order:
    min_p   scores >= top + log(min_p): at least min_p times as likely as the likeliest
    top_k   scores >= the k-th score of what is left: all that tie with the k-th stay
    top_p   the fewest of what is left whose mass is >= top_p of its mass; among equal scores
            at the boundary the lower token ids stay

On a CPU, C finds where each line is cut, without sorting. Elsewhere a head of each line (scan.py)
is sorted, deep enough to prove the counts right. For top_k and min_p the depth is known beforehand,
for top_p it is not; only lines that no shallow head proves are sorted whole.
Masses are added as integers, so the sum does not depend on the order or on other lines.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from quire.backends.cpu.native.noise import Border, can_search, cut_lines
from quire.sampling.scan import LOWEST, Head, bounds_of, flat_nonzero, heads

# The mass of a whole line. 13 bits above it stay free; a token's mass is rounded to 2**-50.
_ONE = 2**50
NO_TOP_K = 2**62
_DEPTH = 6.0  # nats below the likeliest token: the depth of the first head if only top_p is set


@dataclass(frozen=True, slots=True)
class Limits:
    """Each line's limits. NO_TOP_K, min_p = log(0) and top_p = 1 mean no limit."""

    top_k: Tensor  # int64 [lines]
    min_p: Tensor  # float32 [lines], as its logarithm
    top_p: Tensor  # float64 [lines]

    def take(self, lines: Tensor) -> Limits:
        return Limits(self.top_k[lines], self.min_p[lines], self.top_p[lines])


def truncate(scores: Tensor, top: Tensor, limits: Limits) -> Border:
    """Where every line is cut.

    scores [1 5 4 4 0] with top_k = 2 keeps tokens 1 2 3; with top_p = 0.6 it keeps 1 and,
    because token 1 has a mass of 0.57, also 2.
    """
    chances, whole, has_top_p = None, None, limits.top_p < 1
    if bool(has_top_p.any()):
        chances = torch.softmax(scores, 1)
        # Sums are needed only for lines with no other limit; on a CPU they take as long as the cut.
        is_open = (limits.top_k >= scores.shape[1]) & (limits.min_p == -torch.inf)
        is_asked = bool((has_top_p & is_open).any())
        whole = _sums(chances) if is_asked else torch.ones_like(limits.top_p)
    if scores.dtype != torch.float32 or not can_search(scores):
        return _by_heads(scores, top, limits, chances, whole)
    least = (top + limits.min_p).clamp_(min=LOWEST)
    return cut_lines(scores, top, least, limits.top_k, limits.top_p, chances, whole)


def _by_heads(
    scores: Tensor, top: Tensor, limits: Limits, chances: Tensor | None, whole: Tensor | None
) -> Border:
    pending, bounds = torch.arange(len(scores), device=scores.device), _bounds(scores, top, limits)
    border = Border(torch.empty_like(top), torch.empty_like(pending))
    while len(pending):
        unsure = []
        for head in heads(scores, bounds, pending):
            limits_here = limits.take(head.lines)
            num_kept, sure = _ranked(head, top[head.lines], limits_here)
            if chances is not None and whole is not None:
                some, all_of_it = chances[head.lines[:, None], head.tokens], whole[head.lines]
                num_kept, sure = _cut_by_mass(num_kept, sure, some, all_of_it, limits_here)
                sure |= head.complete
            unsure.append(head.lines[flat_nonzero(~sure)])
            # Lines that are not sure are cut again.
            last = (num_kept - 1).clamp_(min=0)[:, None]
            border.values[head.lines] = head.values.gather(1, last)[:, 0]
            border.last[head.lines] = head.tokens.gather(1, last)[:, 0]
        pending = torch.cat(unsure).sort().values  # `heads` needs ascending lines
        bounds = torch.full_like(top[pending], -torch.inf)
    return border


def _bounds(scores: Tensor, top: Tensor, limits: Limits) -> Tensor:
    """Where the first head of each line is cut: at min_p's bound, or where it surely holds the
    tokens of top_k."""
    by_min_p, is_counted = top + limits.min_p, limits.top_k < NO_TOP_K
    bounds = torch.where(limits.min_p > -torch.inf, by_min_p, top - _DEPTH)
    if not bool(is_counted.any()):
        return bounds
    by_count = bounds_of(scores, torch.where(is_counted, limits.top_k, 1))
    return torch.where(is_counted, torch.maximum(by_min_p, by_count), bounds)


def _ranked(head: Head, top: Tensor, limits: Limits) -> tuple[Tensor, Tensor]:
    """How many tokens of each head min_p and top_k keep, and whether the head holds all of them."""
    values, width = head.values, head.values.shape[1]
    in_head = (values > -torch.inf).sum(1)
    kth = values.gather(1, (limits.top_k.clamp(max=width) - 1)[:, None])
    # Past the end of a short head the k-th value is padding, which removes nothing.
    least = top + limits.min_p
    stays = (values >= kth) & (values >= least[:, None]) & (values > -torch.inf)
    sure = (limits.top_k <= in_head) | (least >= head.bounds)
    return stays.sum(1), sure | head.complete


def _cut_by_mass(
    num_kept: Tensor, sure: Tensor, chances: Tensor, whole: Tensor, limits: Limits
) -> tuple[Tensor, Tensor]:
    """How many of these tokens top_p keeps, given the probabilities of each head's tokens."""
    stays = torch.arange(chances.shape[1], device=chances.device) < num_kept[:, None]
    mass = (chances.double() * _ONE).long() * stays
    running = mass.cumsum(1)
    # Without min_p and top_k the head need not hold all tokens that are left.
    is_open = (limits.top_k == NO_TOP_K) & (limits.min_p == -torch.inf)
    left = torch.where(is_open, whole * _ONE, running[:, -1].double())
    needed = (limits.top_p * left).ceil_().long()
    within = stays & (running - mass < needed[:, None])
    has_top_p = limits.top_p < 1
    num_kept = torch.where(has_top_p, within.sum(1), num_kept)
    return num_kept, torch.where(has_top_p & is_open, running[:, -1] >= needed, sure)


def _sums(chances: Tensor) -> Tensor:
    """float64 sums, each line by itself: torch may split a single line over threads."""
    if chances.device.type == "cpu":
        return torch.from_numpy(chances.numpy().sum(1, dtype=np.float64))
    return chances.sum(1, dtype=torch.float64)
