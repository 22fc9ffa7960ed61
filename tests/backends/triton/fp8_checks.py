"""What kernels must do in fp8, as plain functions, and caches in fp8 made of floats."""

from __future__ import annotations

import torch
from torch import Tensor

from quire.backends.fp8 import FP8, round_lines, wide_keys, wide_values
from quire.backends.ops import HeadShape
from tests.backends.triton.checks import Place, head_inputs

HALF_STEP = 2.0**-4  # of the number itself: fp8 keeps 3 bits behind the leading one
LEAST_STEP = 2.0**-10  # of the scale: half of the smallest number


def packed(cache: Tensor, *, paired: bool, left: int = 0) -> Tensor:
    """Keys or values [N, kv_heads, S, D] as a layer's cache in fp8. NaN leaves a NaN scale, and
    this byte in place of numbers."""
    numbers, scales = round_lines(cache)
    numbers.view(torch.uint8)[scales.isnan()] = left
    if paired:
        count, heads, slots, width = cache.shape
        pairs = numbers.view(torch.uint8).view(count, heads, slots // 2, 2, width)
        numbers = pairs.transpose(3, 4).contiguous().view(FP8)
    tail = scales.log2().contiguous().view(torch.uint8)
    return torch.cat([numbers.reshape(*cache.shape[:2], -1).view(torch.uint8), tail], -1).view(FP8)


def assert_rounded(made: Tensor, exact: Tensor, *, slack: float = 0.0) -> None:
    """Every line of `made` is within half a step of fp8 (and some slack) of the exact one."""
    made, exact = made.float().cpu(), exact.float().cpu()
    scale = exact.abs().amax(-1, keepdim=True) / 448
    limit = torch.maximum(exact.abs() * HALF_STEP, scale * LEAST_STEP) * 1.01
    limit += slack * exact.abs()
    off = (made - exact).abs() > limit
    assert not off.any(), (made[off][:4], exact[off][:4])


def check_stored(place: Place, shape: HeadShape, num_tokens: int, *, normed: bool) -> None:
    """Keys and values are those of the float kernel, rounded; other slots are left alone."""
    from quire.backends.triton.heads import norm_rope_store

    given = head_inputs(place, shape, num_tokens, normed=normed)
    floats = (given.keys.clone(), given.values.clone())
    q = norm_rope_store(*given.before, *floats, shape, given.norms)
    caches = _both(given.keys, given.values)
    before = [cache.clone() for cache in caches]
    made = norm_rope_store(*given.before, *caches, shape, given.norms)
    assert torch.equal(made, q)
    slots = given.before[3].cpu()
    written = torch.zeros(len(given.keys) * shape.block_size, dtype=torch.bool)
    written[slots[slots >= 0]] = True
    lines = written.view(-1, 1, shape.block_size).expand(given.keys.shape[:3])
    widen = (wide_keys, wide_values)
    for cache, old, exact, wide in zip(caches, before, floats, widen, strict=True):
        now, was = (wide(x.cpu(), shape.block_size) for x in (cache, old))
        # The exact ones were rounded to their dtype, which those in fp8 were not.
        slack = torch.finfo(place.dtype).eps
        assert_rounded(now[lines], exact.cpu()[lines], slack=slack)
        assert torch.equal(now[~lines], was[~lines])


def _both(keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """A layer's cache in fp8."""
    rounded = packed(keys.cpu(), paired=False), packed(values.cpu(), paired=True)
    return rounded[0].to(keys.device), rounded[1].to(values.device)


def check_broken_numbers(place: Place, shape: HeadShape) -> None:
    """What is not finite leaves a scale that is NaN, and zeros; its neighbours stay whole."""
    from quire.backends.triton.heads import norm_rope_store

    given = head_inputs(place, shape, 6, normed=False)
    qkv = given.before[0].clone()
    qkv[2, shape.num_heads :] = torch.inf
    qkv[4, shape.num_heads :, 3] = torch.nan
    caches = _both(torch.zeros_like(given.keys), torch.zeros_like(given.values))
    slots = torch.arange(6, device=place.device)
    norm_rope_store(qkv, *given.before[1:3], slots, *caches, shape, None)
    for cache, widen in zip(caches, (wide_keys, wide_values), strict=True):
        wide = widen(cache.cpu(), shape.block_size)
        lines = wide.transpose(1, 2).flatten(0, 1)[:6]
        assert lines[[2, 4]].isnan().all()
        assert lines[[0, 1, 3, 5]].isfinite().all()
        assert cache.cpu().float()[..., : -4 * shape.block_size].isfinite().all()
