"""Drawing: the token whose score plus noise (seeds.py) is the largest, the lowest among equals.

Exact, yet noise is made only where it can matter. The noisy score of each line's best token is one
to beat. A token whose score is below it by more than the largest possible noise cannot win, and of
the other tokens only the few with a small enough uniform need their logarithms.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quire.backends.cpu.native.noise import Border, can_search, candidates
from quire.sampling.scan import flat_nonzero
from quire.sampling.seeds import (
    LANE,
    LANES,
    LARGEST,
    TILE,
    Array,
    NoiseKeys,
    blocks,
    gumbel,
    noise,
    uniform,
)

# Blocks processed together: they fit into a CPU's second-level cache.
_CPU_BLOCKS = 2**14
_GPU_BLOCKS = 2**22
_WORTH_PICKING = 0.8  # if a larger share of the blocks is needed, computing all is as fast
_NO_TOKEN = 2**62
_FEW_LINES = 8


def draw_from_all(
    scores: Tensor, top: Tensor, top_tokens: Tensor, keys: NoiseKeys, border: Border | None = None
) -> Tensor:
    """One token per line out of the whole vocabulary: scores [lines, vocab], float32.

    `top` and `top_tokens` are each line's largest score and its token. With `border`, lines are
    cut there (truncation.py), and only the tokens that stay are drawn from.
    """
    if _is_sooner_here(scores):
        here, tokens, mine = scores.cpu(), top_tokens.cpu(), keys.on_cpu()
        to_beat = top.cpu() + noise(tokens[:, None], mine)[:, 0]
        if border is not None:
            here = Border(border.values.cpu(), border.last.cpu()).masked(here)
        # Not in C, which might have to be compiled first, where all else runs on a GPU.
        return _draw_by_blocks(here.float(), to_beat, tokens, mine).to(scores.device)
    to_beat = top + noise(top_tokens[:, None], keys)[:, 0]
    if scores.dtype == torch.float32 and can_search(scores):
        return _draw_natively(scores, to_beat, top_tokens, keys, border)
    scores = scores if border is None else border.masked(scores)
    return _draw_by_blocks(scores, to_beat, top_tokens, keys)


def _is_sooner_here(scores: Tensor) -> bool:
    """Whether the CPU draws faster from so few lines of a GPU: the noise of a line is about a
    hundred small operations, and each takes a GPU at least the time of a launch."""
    return scores.is_cuda and len(scores) <= _FEW_LINES


def _draw_natively(
    scores: Tensor,
    to_beat: Tensor,
    top_tokens: Tensor,
    keys: NoiseKeys,
    border: Border | None,
) -> Tensor:
    """C leaves very few tokens of each line; lines that it cannot decide are searched here."""
    words = (keys.low, keys.high, keys.sample, keys.position)
    few = candidates(scores, to_beat, *words, border)
    noisy = few.score + gumbel(few.uniform)
    drawn = _winners(few.line, few.token, noisy, to_beat, top_tokens)
    if few.crowded.any():
        rest = few.crowded
        some = scores[rest] if border is None else border.take(rest).masked(scores[rest])
        drawn[rest] = _draw_by_blocks(some, to_beat[rest], top_tokens[rest], keys.take(rest))
    return drawn


def _draw_by_blocks(scores: Tensor, to_beat: Tensor, top_tokens: Tensor, keys: NoiseKeys) -> Tensor:
    step = max(1, _num_blocks(scores) * LANES // scores.shape[1])
    whole, bound = _as_array(scores), _as_array(_bound(to_beat))
    found = []
    for begin in range(0, len(scores), step):
        part = slice(begin, begin + step)
        for line, *rest in _search(whole[part], bound[part], keys.take(part)):
            found.append((line + begin, *rest))
    line, token, score, chance = (
        torch.cat([torch.as_tensor(part) for part in column]) for column in zip(*found, strict=True)
    )
    return _winners(line, token, score + gumbel(chance), to_beat, top_tokens)


def _search(scores: Array, bound: Array, keys: NoiseKeys) -> Iterator[tuple[Array, ...]]:
    """(line, token, score, uniform) of the tokens that may reach their bound, for a few lines.

    The blocks of these lines are processed in parts that fit into a CPU's cache.
    """
    xp: Any = np if isinstance(scores, np.ndarray) else torch
    lanes = _by_lane(scores, xp)
    nearest = xp.amax(xp.amax(lanes, 0) - bound, 0)
    needed = _flat(nearest >= -LARGEST)
    if len(needed) > _WORTH_PICKING * len(nearest):
        needed = _flat(nearest >= -xp.inf)
    step = max(1, _num_blocks(scores) // len(scores))
    for begin in range(0, len(needed), step):
        some = needed[begin : begin + step]
        chances = uniform(blocks(torch.as_tensor(some)[None, :], keys)[: len(lanes)])
        theirs = lanes if len(some) == len(nearest) else _pick(lanes, some)
        # -log1p(-u) >= u, so the noise is at most -log(u): u <= exp(score - bound) must hold.
        # u is at most 1, so the exponent is limited to 0, which avoids an overflow.
        hits = _flat(xp.exp((theirs - bound).clip(max=0)) >= chances)
        size = len(scores) * len(some)
        line, block = hits % size // len(some), some[hits % len(some)]
        token = block // LANE * TILE + hits // size * LANE + block % LANE
        yield line, token, theirs.reshape(-1)[hits], chances.reshape(-1)[hits]


def _winners(
    line: Tensor, tokens: Tensor, noisy: Tensor, to_beat: Tensor, top_tokens: Tensor
) -> Tensor:
    """Each line's token with the largest noisy score, the lowest among equals.

    The token of `to_beat` is a candidate; the others come as (line, token, noisy score).
    """
    best = to_beat.scatter_reduce(0, line, noisy, "amax")
    token = top_tokens.masked_fill(best > to_beat, _NO_TOKEN)
    wins = flat_nonzero(noisy == best[line])
    return token.scatter_reduce_(0, line[wins], tokens[wins], "amin")


def _bound(to_beat: Tensor) -> Tensor:
    """A score [lines, 1] that every token as good as to_beat reaches, whatever the rounding."""
    return (to_beat - 1e-3 - to_beat.abs() * 2**-22)[:, None]


def _by_lane(scores: Array, xp: Any) -> Array:
    """Scores as [lanes, lines, blocks]: the tokens of a block along axis 0, -inf for padding."""
    lines, vocab = scores.shape
    if vocab <= LANE:
        return scores[None]
    if vocab % TILE:
        size = -(-vocab // TILE) * TILE
        padding = xp.zeros_like(scores[:, :1]) - xp.inf
        scores = xp.concatenate([scores, xp.broadcast_to(padding, (lines, size - vocab))], 1)
    return xp.moveaxis(scores.reshape(lines, -1, LANES, LANE), 2, 0).reshape(LANES, lines, -1)


def _as_array(numbers: Tensor) -> Array:
    return numbers.numpy() if numbers.device.type == "cpu" else numbers


def _flat(mask: Array) -> Array:
    return np.flatnonzero(mask) if isinstance(mask, np.ndarray) else flat_nonzero(mask)


def _pick(lanes: Array, some: Array) -> Array:
    return lanes.take(some, 2) if isinstance(lanes, np.ndarray) else lanes.index_select(2, some)


def _num_blocks(like: Array) -> int:
    on_cpu = isinstance(like, np.ndarray) or like.device.type == "cpu"
    return _CPU_BLOCKS if on_cpu else _GPU_BLOCKS
