"""What kernels must do in fp8, as plain functions, and caches in fp8 made of floats."""

from __future__ import annotations

import torch
from torch import Tensor

from quire.backends.fp8 import FP8, Fp8Matrix, round_lines, wide_keys, wide_values
from quire.backends.ops import HeadShape
from tests.backends.triton.checks import TOLERANCE, Place, head_inputs

HALF_STEP = 2.0**-4  # of the number itself: fp8 keeps 3 bits behind the leading one
LEAST_STEP = 2.0**-10  # of the scale: half of the smallest number


def packed(cache: Tensor, *, paired: bool) -> Tensor:
    """Keys or values [N, kv_heads, S, D] as a layer's cache in fp8; NaN leaves a NaN scale."""
    numbers, scales = round_lines(cache)
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


def check_rounded_rows(place: Place, num_rows: int, width: int) -> None:
    from quire.backends.triton.fp8 import round_rows

    loudness = torch.logspace(-3, 2, num_rows, device=place.device).to(place.dtype)
    x = place.random(num_rows, width, seed=0) * loudness[:, None]
    x[1] = 0
    made = round_rows(x)
    assert_rounded(made.numbers.cpu().float() * made.scales.cpu(), x)
    numbers, scales = round_lines(x.cpu())
    torch.testing.assert_close(made.scales.cpu()[:, 0], scales, rtol=1e-6, atol=0)
    # Quotients may lie on either side of a tie.
    different = made.numbers.cpu().float() != numbers.float()
    assert different.float().mean() < 0.01


def check_fused(place: Place, num_rows: int, width: int) -> None:
    """Norm and gate give what they give elsewhere, rounded."""
    from quire.backends.triton import elementwise
    from quire.backends.triton.fp8 import rms_norm_rounded, round_rows, silu_mul_rounded

    x, residual = (place.random(num_rows, width, seed=seed) for seed in (0, 1))
    weight, before = place.random(width, seed=2), residual.clone()
    pairs = [
        (rms_norm_rounded(x, None, weight, 1e-5), elementwise.rms_norm(x, weight, 1e-5)),
        (
            rms_norm_rounded(x, residual, weight, 1e-5),
            elementwise.add_rms_norm(x, before, weight, 1e-5),
        ),
    ]
    if width % 2 == 0:
        pairs.append((silu_mul_rounded(x), elementwise.gate_mul(x)))
    assert torch.equal(residual, before)
    for made, plain in pairs:
        expected = round_rows(plain)
        torch.testing.assert_close(made.scales, expected.scales, rtol=1e-2, atol=0)
        wide = made.numbers.cpu().float() * made.scales.cpu()
        # Sums in another order may round x to its neighbour before fp8 does.
        assert_rounded(wide, plain, slack=TOLERANCE[place.dtype])


def check_linear(place: Place, num_rows: int, inner: int, outer: int, *, bias: bool) -> None:
    """The product of the rounded rows and the rounded matrix, in float64."""
    from quire.backends.triton.fp8 import Fp8Linear, round_rows

    x = place.random(num_rows, inner, seed=1)
    weight = place.random(outer, inner, seed=2) * 0.05
    matrix = Fp8Matrix.of(weight)
    b = place.random(outer, seed=3) if bias else None
    made = Fp8Linear(matrix, b)(x)
    rows = round_rows(x)
    left = rows.numbers.cpu().double() * rows.scales.cpu().double()
    right = matrix.numbers.cpu().double() * matrix.scales.cpu().double()
    expected = left @ right.T + (0 if b is None else b.cpu().double())
    error = (made.cpu().double() - expected).norm() / expected.norm()
    assert made.dtype == x.dtype
    assert error < 6e-3, float(error)
    whole = (x.cpu().double() @ weight.cpu().double().T).norm()
    plain = expected - (0 if b is None else b.cpu().double())
    assert (plain - x.cpu().double() @ weight.cpu().double().T).norm() < 0.06 * whole
