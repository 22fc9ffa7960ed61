"""What attention of long slices must do, as plain functions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from quire.backends.ops import AttentionInputs, HeadShape
from quire.backends.triton.dense import DenseSizes
from quire.backends.triton.kernels import TritonKernels
from tests.backends.triton.checks import (
    Paged,
    Place,
    assert_close,
    expected_attention,
    least_of,
    paged,
)

SMALL = DenseSizes(unit=16, lengths=(64, 32), stretches=(32, 16), worth=0)


def pass_of(
    place: Place, shape: HeadShape, slices: Sequence[tuple[int, int]], num_decoding: int = 0
) -> tuple[AttentionInputs, Paged, Tensor]:
    """Slices as (new tokens, tokens before them), then rows of one token each; and their q."""
    everybody = [*slices, *((1, 20 + i) for i in range(num_decoding))]
    made = paged(place, shape, [new + past for new, past in everybody])
    starts = torch.tensor([0, *(new for new, _ in everybody)]).cumsum(0)
    num_tokens = int(starts[-1])
    q = place.random(num_tokens, shape.num_heads, shape.head_dim, seed=12)
    slots = torch.zeros(num_tokens, dtype=torch.int64, device=place.device)
    inputs = AttentionInputs(
        starts.to(place.device),
        made.lengths,
        made.tables,
        slots,
        len(slices),
        spans=tuple(slices),
    )
    return inputs, made, q


def check_dense(
    place: Place,
    shape: HeadShape,
    slices: Sequence[tuple[int, int]],
    sizes: DenseSizes,
    *,
    num_decoding: int = 0,
    roomy: bool = True,
) -> None:
    """As the reference; around q there is NaN, or nothing."""
    inputs, made, q = pass_of(place, shape, slices, num_decoding)
    if roomy:
        around = q.new_full((len(q) + 2 * sizes.unit, *q.shape[1:]), torch.nan)
        around[sizes.unit : -sizes.unit] = q
        q = around[sizes.unit : -sizes.unit]
    step = TritonKernels(shape, sizes).plan_attention(inputs, None)
    assert step.dense is not None
    expected = expected_attention(shape, q, inputs, made, None).to(place.dtype)
    assert_close(step.attend(q, made.keys, made.values), expected, least=least_of(shape))


def check_against_our_kernel(
    place: Place, shape: HeadShape, slices: Sequence[tuple[int, int]]
) -> None:
    inputs, made, q = pass_of(place, shape, slices)
    both = [
        TritonKernels(shape, sizes).plan_attention(inputs, None) for sizes in (DenseSizes(), None)
    ]
    assert both[0].dense is not None and both[1].dense is None
    ours, theirs = (step.attend(q, made.keys, made.values) for step in reversed(both))
    # Both round to 16 bits; stretches are rounded once more before they are merged.
    assert_close(theirs, ours)
    off = (theirs.float() - ours.float()).norm() / ours.float().norm()
    assert off < (6e-3 if place.dtype == torch.bfloat16 else 1e-3), off
