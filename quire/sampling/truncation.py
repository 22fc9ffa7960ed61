"""min_p, top_k and top_p: which tokens a line may still draw, and which of them it draws.

All three keep the beginning of the tokens in falling order of score, so each is a count. In order:
    min_p   scores >= top + log(min_p): at least min_p times as likely as the likeliest
    top_k   scores >= the k-th score of what is left: all that tie with the k-th stay
    top_p   the fewest of what is left whose mass is >= top_p of its mass; among equal scores
            at the boundary the lower token ids stay

The vocabulary is not sorted: a line's head (scan.py) is cut deep enough to prove the counts
right, which top_k and min_p say beforehand and top_p does not. Only lines where no shallow head
proves it are sorted whole.
Masses are added as integers, so the sum does not depend on the order or on other lines.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from quire.sampling.draw import draw_among, draw_from_all
from quire.sampling.scan import Head, bounds_of, flat_nonzero, heads
from quire.sampling.seeds import NoiseKeys

# The whole mass of a line. Leaves 13 bits above it, and rounds a token's mass by 2**-50.
_ONE = 2**50
NO_TOP_K = 2**62
# How far below the likeliest token (in nats) the first head is cut where neither top_k nor min_p
# says it. Where that has too little mass, steps are counted that have enough, down to the deepest.
_DEPTH, _STEPS_A_NAT, _DEEPEST = 6.0, 8, 16
_WIDE = 1024  # tokens


@dataclass(frozen=True, slots=True)
class Limits:
    """Each line's limits. Off is: NO_TOP_K, min_p = log(0), top_p = 1."""

    top_k: Tensor  # int64 [lines]
    min_p: Tensor  # float32 [lines], as its logarithm
    top_p: Tensor  # float64 [lines]

    def take(self, lines: Tensor) -> Limits:
        return Limits(self.top_k[lines], self.min_p[lines], self.top_p[lines])


@dataclass(frozen=True, slots=True)
class Kept:
    """What some lines may draw: the first num_kept[i] of tokens[i], likeliest first."""

    lines: Tensor  # [n]
    values: Tensor  # [n, width]
    tokens: Tensor  # [n, width]
    num_kept: Tensor  # [n], each at least 1


def truncate(scores: Tensor, top: Tensor, limits: Limits) -> list[Kept]:
    """The tokens every line keeps; each line is in exactly one of the answers.

    scores [1 5 4 4 0] with top_k = 2 keeps tokens 1 2 3; with top_p = 0.6 it keeps 1 and,
    because token 1 has a mass of 0.57, also 2.
    """
    chances, whole = None, None
    if bool((limits.top_p < 1).any()):
        chances = torch.softmax(scores, 1)
        whole = _sums(chances)
    pending, bounds = torch.arange(len(scores), device=scores.device), _bounds(scores, top, limits)
    kept: list[Kept] = []
    is_first = True
    while len(pending):
        unsure = []
        for head in heads(scores, bounds, pending):
            limits_here = limits.take(head.lines)
            num_kept, sure = _ranked(head, top[head.lines], limits_here)
            if chances is not None and whole is not None:
                some, all_of_it = chances[head.lines[:, None], head.tokens], whole[head.lines]
                num_kept, sure = _cut_by_mass(num_kept, sure, some, all_of_it, limits_here)
                sure |= head.complete
            yes, no = flat_nonzero(sure), flat_nonzero(~sure)
            unsure.append(head.lines[no])
            if len(yes):
                kept.append(
                    Kept(head.lines[yes], head.values[yes], head.tokens[yes], num_kept[yes])
                )
        pending = torch.cat(unsure).sort().values  # heads takes all lines to be in order
        bounds = torch.full_like(top[pending], -torch.inf)
        if is_first and len(pending) and chances is not None and whole is not None:
            needed = limits.top_p[pending] * whole[pending]
            bounds = _bounds_by_mass(scores[pending], top[pending], chances[pending], needed)
        is_first = False
    return kept


def _bounds(scores: Tensor, top: Tensor, limits: Limits) -> Tensor:
    """Where the first head of each line is cut: at min_p's bound, and where top_k is sure to have
    its tokens."""
    by_min_p, is_counted = top + limits.min_p, limits.top_k < NO_TOP_K
    bounds = torch.where(limits.min_p > -torch.inf, by_min_p, top - _DEPTH)
    if not bool(is_counted.any()):
        return bounds
    by_count = bounds_of(scores, torch.where(is_counted, limits.top_k, 1))
    return torch.where(is_counted, torch.maximum(by_min_p, by_count), bounds)


def _bounds_by_mass(scores: Tensor, top: Tensor, chances: Tensor, needed: Tensor) -> Tensor:
    """Where heads of lines that top_p alone cuts are likely to have the mass; -inf if nowhere."""
    lines, last = len(scores), _STEPS_A_NAT * _DEEPEST
    step = (top[:, None] - scores).mul_(_STEPS_A_NAT).clamp_(max=last).int()
    step += torch.arange(lines, device=top.device, dtype=torch.int32)[:, None] * (last + 1)
    mass = torch.bincount(step.flatten(), chances.flatten().double(), lines * (last + 1))
    too_little = mass.view(lines, -1).cumsum(1)[:, :-1] <= needed[:, None]
    steps = too_little.sum(1) + 1  # nothing of the step before the last is left out
    return torch.where(steps > last, -torch.inf, top - steps / _STEPS_A_NAT)


def mask_out(scores: Tensor, kept: list[Kept]) -> Tensor:
    """The scores with every token that no line kept at -inf."""
    masked = torch.full_like(scores, -torch.inf)
    for group in kept:
        _put(masked, group.lines, group)
    return masked


def _put(masked: Tensor, lines: Tensor, group: Kept) -> None:
    stays = torch.arange(group.tokens.shape[1], device=masked.device) < group.num_kept[:, None]
    line = lines[:, None].expand_as(group.tokens)
    masked[line[stays], group.tokens[stays]] = group.values[stays]


def draw_kept(scores: Tensor, kept: list[Kept], keys: NoiseKeys) -> Tensor:
    """One token for each line out of those that it keeps.

    Of very many it is searched among all: noise is made there for the few that can win.
    """
    drawn = torch.empty(len(scores), dtype=torch.int64, device=scores.device)
    for group in kept:
        theirs = keys.take(group.lines)
        if group.tokens.shape[1] <= _WIDE:
            chosen = draw_among(group.values, group.tokens, group.num_kept, theirs)
        else:
            masked = scores.new_full((len(group.lines), scores.shape[1]), -torch.inf)
            _put(masked, torch.arange(len(masked), device=masked.device), group)
            chosen = draw_from_all(masked, group.values[:, 0], group.tokens[:, 0], theirs)
        drawn[group.lines] = chosen
    return drawn


def _ranked(head: Head, top: Tensor, limits: Limits) -> tuple[Tensor, Tensor]:
    """How many of each head min_p and top_k keep, and whether the head holds all they keep."""
    values, width = head.values, head.values.shape[1]
    in_head = (values > -torch.inf).sum(1)
    kth = values.gather(1, (limits.top_k.clamp(max=width) - 1)[:, None])
    # Past the end of a short head the k-th value is the padding, and takes nothing away.
    least = top + limits.min_p
    stays = (values >= kth) & (values >= least[:, None]) & (values > -torch.inf)
    sure = (limits.top_k <= in_head) | (least >= head.bounds)
    return stays.sum(1), sure | head.complete


def _cut_by_mass(
    num_kept: Tensor, sure: Tensor, chances: Tensor, whole: Tensor, limits: Limits
) -> tuple[Tensor, Tensor]:
    """How many of those are left after top_p, given the chances of each head's tokens."""
    stays = torch.arange(chances.shape[1], device=chances.device) < num_kept[:, None]
    mass = (chances.double() * _ONE).long() * stays
    running = mass.cumsum(1)
    # Where neither min_p nor top_k took anything the head need not hold all that is left.
    is_open = (limits.top_k == NO_TOP_K) & (limits.min_p == -torch.inf)
    left = torch.where(is_open, whole * _ONE, running[:, -1].double())
    needed = (limits.top_p * left).ceil_().long()
    within = stays & (running - mass < needed[:, None])
    has_top_p = limits.top_p < 1
    num_kept = torch.where(has_top_p, within.sum(1), num_kept)
    return num_kept, torch.where(has_top_p & is_open, running[:, -1] >= needed, sure)


def _sums(chances: Tensor) -> Tensor:
    """float64 sums of each line by itself: torch may share a lone line among threads."""
    if chances.device.type == "cpu":
        return torch.from_numpy(chances.numpy().sum(1, dtype=np.float64))
    return chances.sum(1, dtype=torch.float64)
