"""Attention to rows that are keys and values of all heads, and storing them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from quire.backends.ops import AttentionInputs, HeadShape, LatentRows, RowNorm
from tests.backends.reference import ReferenceKernels
from tests.backends.triton.checks import (
    Paged,
    Place,
    assert_close,
    expected_attention,
    paged,
)
from tests.backends.triton.places import GPU_DTYPES, small_places

# heads, numbers of a latent and those that are turned, slots of a block; more heads than a tile has
SHAPES = [(4, 32, 16, 16), (3, 24, 8, 4), (72, 16, 4, 16)]


def shape_of(place: Place, heads: int, rank: int, turned: int, slots: int) -> HeadShape:
    width = rank + turned
    return HeadShape(heads, 1, width, slots, place.dtype, own_scale=0.2, values_in_keys=rank)


def paged_rows(place: Place, shape: HeadShape, lengths: Sequence[int]) -> Paged:
    made = paged(place, shape, lengths)
    return replace(made, values=made.keys)


def of_values(made: torch.Tensor, shape: HeadShape) -> torch.Tensor:
    """What a reference that brings whole keys home says of their first numbers."""
    return made.view(len(made), shape.num_heads, -1)[..., : shape.value_dim].flatten(1)


def check_rows(place: Place, shape: HeadShape, lengths: Sequence[int]) -> None:
    from quire.backends.triton.decode import DecodeBuffers
    from quire.backends.triton.latent import decode_attention, parts_shape

    made, num_rows = paged_rows(place, shape, lengths), len(lengths)
    q = place.random(num_rows, shape.num_heads, shape.head_dim, seed=11)
    buffers = DecodeBuffers.make(parts_shape(shape), num_rows, place.device)
    buffers.parts.fill_(torch.nan)
    attention = decode_attention(shape, buffers, num_rows)
    attention.plan(made.lengths, made.tables)
    out = attention.attend(q, made.keys, made.keys)
    active = made.lengths.cpu() > 0
    starts = torch.arange(int(active.sum()) + 1)
    tables = made.tables.cpu()[active]
    inputs = AttentionInputs(starts, made.lengths.cpu()[active], tables, made.lengths, 0)
    expected = torch.zeros(num_rows, shape.num_heads * shape.value_dim)
    found = expected_attention(shape, q[active.to(q.device)], inputs, made, None)
    expected[active] = of_values(found, shape)
    assert_close(out, expected.to(place.dtype), least=1e-4)


def check_slices(place: Place, shape: HeadShape, slices: Sequence[tuple[int, int]]) -> None:
    """Slices as (new tokens, tokens before them)."""
    from quire.backends.triton.kernels import TritonKernels

    made = paged_rows(place, shape, [new + past for new, past in slices])
    starts = torch.tensor([0, *(new for new, _ in slices)]).cumsum(0)
    num_tokens = int(starts[-1])
    q = place.random(num_tokens, shape.num_heads, shape.head_dim, seed=12)
    slots = torch.arange(num_tokens)
    inputs = AttentionInputs(starts, made.lengths, made.tables, slots, len(slices))
    on_device = AttentionInputs(
        starts.to(place.device), made.lengths, made.tables, slots, len(slices)
    )
    step = TritonKernels(shape).plan_attention(on_device, None)
    out = step.attend(q, made.keys, made.keys)
    expected = of_values(expected_attention(shape, q, inputs, made, None), shape)
    assert_close(out, expected.to(place.dtype), least=1e-4)


@pytest.mark.parametrize("place", small_places())
@pytest.mark.parametrize(("heads", "rank", "turned", "slots"), SHAPES)
def test_decode_rows_and_slices(
    place: Place, heads: int, rank: int, turned: int, slots: int
) -> None:
    """Of one item and of several, of none; from the first token on and behind others."""
    shape = shape_of(place, heads, rank, turned, slots)
    check_rows(place, shape, [37, 0, 1, 300, 16])
    check_slices(place, shape, [(20, 0), (1, 35), (9, 13)])


@pytest.mark.parametrize("place", small_places())
def test_blocks_of_a_number_of_rows_that_is_no_power_of_two(place: Place) -> None:
    shape = shape_of(place, 4, 32, 16, 384)
    check_rows(place, shape, [400, 0, 1, 900, 384])
    check_slices(place, shape, [(20, 370), (5, 0)])


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("place", small_places())
def test_rows_go_to_their_slots_and_queries_are_turned(place: Place, wide: bool) -> None:
    """Slot -1 is nobody's, and a row without a slot fills up a pass; `wide`: the weight is."""
    from quire.backends.triton.latent import rotate_latents

    keys, row = place.random(3, 1, 4, 30, seed=1), place.random(5, 40, seed=2)[:, :30]
    q, angles = place.random(5, 18, 14, seed=3), place.random(5, 3, seed=4).float()
    weight = place.random(24, seed=5)
    norm = RowNorm(weight.float() + 1e-4 if wide else weight, 1e-3)
    slots = torch.tensor([7, -1, 0, 11], device=place.device)
    cos, sin, expected, some = angles.cos(), angles.sin(), keys.clone(), [0, 2, 3]
    judge = ReferenceKernels(HeadShape(18, 1, 30, 4, place.dtype, values_in_keys=24))
    wanted = judge.rotate_latents(LatentRows(q, row, norm, cos, sin), slots[:0], expected)
    real = LatentRows(q[some], row[some], norm, cos[some], sin[some])
    judge.rotate_latents(real, slots[some], expected)
    made = rotate_latents(LatentRows(q, row, norm, cos, sin), slots, keys)
    assert_close(made[..., 24:], wanted[..., 24:])
    assert_close(keys, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", GPU_DTYPES)
def test_rows_of_real_size(dtype: torch.dtype) -> None:
    place = Place(torch.device("cuda"), dtype)
    for heads in (16, 128) if dtype.itemsize == 2 else (16,):
        shape = shape_of(place, heads, 512, 64, 16)
        check_rows(place, shape, [1, 0, 2000, 700, *range(1, 200, 7)])
        check_slices(place, shape, [(100, 0), (1, 500), (65, 333)])
