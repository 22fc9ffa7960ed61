"""A KV cache in fp8: in the interpreter, and on a GPU at real shapes."""

from __future__ import annotations

import pytest
import torch
import triton.language as tl

from quire.backends.fp8 import FP8, block_shape, round_lines, wide_keys, wide_values
from quire.backends.ops import AttentionInputs, HeadShape
from quire.backends.triton.fp8_kernels import fetch_pairs
from quire.backends.triton.jit import kernel
from quire.backends.triton.widen import widen
from tests.backends.triton.checks import Place, assert_close, check_decode, check_prefill, paged
from tests.backends.triton.fp8_checks import (
    check_broken_numbers,
    check_stored,
    packed,
)
from tests.backends.triton.places import DEVICE, real_cases, small_places
from tests.backends.triton.test_attention import NESTED

# In the interpreter numpy does the arithmetic, and says so where a GPU goes on with NaN.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
SHAPES = [(4, 2, 16, 8), (3, 1, 80, 16), (2, 2, 32, 2), (2, 1, 16, 24)]
# Keys and values are multiplied in float16 anyhow: in the interpreter one dtype is enough.
PLACES = small_places() if torch.cuda.is_available() else small_places()[-1:]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads", "width"), [(4, 2, 16), (3, 1, 80), (2, 2, 96)])
def test_keys_and_values_are_stored_rounded(
    place: Place, normed: bool, heads: int, kv_heads: int, width: int
) -> None:
    check_stored(place, HeadShape(heads, kv_heads, width, 8, place.dtype, True), 9, normed=normed)


@pytest.mark.parametrize("place", PLACES)
def test_numbers_that_are_not_finite_are_known_by_their_scale(place: Place) -> None:
    check_broken_numbers(place, HeadShape(4, 2, 16, 4, place.dtype, True))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("heads", "kv_heads", "width", "slots"), SHAPES)
def test_widened(place: Place, heads: int, kv_heads: int, width: int, slots: int) -> None:
    """What a pass reads of the cache as numbers, table by table; zeros behind contexts."""
    shape = HeadShape(heads, kv_heads, width, slots, place.dtype, True)
    lengths = [37, 1, 70]
    made = paged(place, shape, lengths)
    inputs = AttentionInputs(made.lengths, made.lengths, made.tables, made.lengths, len(lengths))
    both = widen(made.keys, made.values, inputs, shape)
    whole = wide_keys(made.keys, slots), wide_values(made.values, slots)
    per_table = made.tables.shape[1]
    for found, expected in zip(both, whole, strict=True):
        for row, length in enumerate(lengths):
            blocks = -(-length // slots)
            mine = found[row * per_table :][:blocks].transpose(1, 2).flatten(0, 1)
            want = expected[made.tables[row, :blocks].long()].transpose(1, 2).flatten(0, 1)
            assert_close(mine[:length], want[:length].to(place.dtype))
            assert not mine[length:].any()


@kernel("end")
def two_tiles(
    values: tl.tensor,
    table: tl.tensor,
    out: tl.tensor,
    end: tl.tensor,
    SLOTS: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    at, pair = tl.arange(0, WIDTH), tl.arange(0, SLOTS)
    even, odd = fetch_pairs(
        values, table, 0, end, tl.program_id(0), at, 1, SLOTS, 2 * SLOTS, WIDTH, WIDTH, False
    )
    place = out + 2 * pair[:, None] * WIDTH + at[None, :]
    tl.store(place, even.to(tl.float32))
    tl.store(place + WIDTH, odd.to(tl.float32))


@pytest.mark.parametrize("end", [1, 4, 7, 8, 9, 13, 16])
def test_values_of_tokens_that_are_not_there_are_0(end: int) -> None:
    """Whatever a state left in their place, also in the second place of a pair."""
    slots, width = 8, 16
    cache = packed(torch.full((3, 1, slots, width), 3.0), paired=True).to(DEVICE)
    table, out = torch.tensor([2, 1]).int().to(DEVICE), torch.empty(2 * slots, width).to(DEVICE)
    two_tiles[(1,)](cache, table, out, end, SLOTS=slots, WIDTH=width)
    assert (out[:end] == 448.0).all() and not out[end:].any()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("window", [None, 21])
@pytest.mark.parametrize(("heads", "kv_heads", "width", "slots"), SHAPES)
def test_decode(
    place: Place, window: int | None, heads: int, kv_heads: int, width: int, slots: int
) -> None:
    shape = HeadShape(heads, kv_heads, width, slots, place.dtype, True)
    check_decode(place, shape, [37, 0, 1, 300, 16, 0, 129], window=window)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("window", [None, 21])
def test_shared_prefixes_of_two_levels(place: Place, window: int | None) -> None:
    shape = HeadShape(4, 2, 16, 8, place.dtype, True)
    check_decode(place, shape, [60, 30, 65, 99, 0, 1], window=window, shared=NESTED)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize(("heads", "kv_heads", "width", "slots"), SHAPES)
def test_prefill_with_and_without_a_past(
    place: Place, window: int | None, heads: int, kv_heads: int, width: int, slots: int
) -> None:
    shape = HeadShape(heads, kv_heads, width, slots, place.dtype, True)
    check_prefill(place, shape, [(50, 0), (1, 70), (33, 21), (4, 0)], window=window)


@pytest.mark.parametrize("place", PLACES)
def test_blocks_may_have_a_number_of_slots_that_is_no_power_of_two(place: Place) -> None:
    test_widened(place, 4, 2, 16, 384)
    shape = HeadShape(4, 2, 16, 384, place.dtype, True)
    check_decode(place, shape, [400, 0, 1, 900, 384], window=450)
    check_decode(place, shape, [400, 390, 1000], shared=((1, (0, 1, 2)),))
    check_prefill(place, shape, [(30, 370), (5, 0)])


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "heads"), real_cases())
def test_decode_at_real_shapes(dtype: torch.dtype, heads: tuple[int, int, int]) -> None:
    place, shape = Place(torch.device("cuda"), dtype), HeadShape(*heads, 16, dtype, True)
    lengths = [(i * 977) % 2500 for i in range(60)]
    check_stored(place, shape, 1000, normed=True)
    check_decode(place, shape, lengths)
    check_decode(place, shape, lengths, window=301)
    nested = ((32, tuple(range(70))), (50, tuple(range(3, 30))))
    check_decode(place, shape, [900 + i for i in range(80)], shared=nested)


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "heads"), real_cases())
def test_prefill_at_real_shapes(dtype: torch.dtype, heads: tuple[int, int, int]) -> None:
    place, shape = Place(torch.device("cuda"), dtype), HeadShape(*heads, 16, dtype, True)
    check_prefill(place, shape, [(700, 0), (130, 900), (1, 33), (64, 64)], queries=128)
    check_prefill(place, shape, [(300, 0), (130, 900)], window=200)


def test_a_line_keeps_its_largest_number_and_its_zeros() -> None:
    x = torch.tensor([[3.0, -1000.0, 0.0], [0.0, 0.0, 0.0], [1e-20, 0, 0]])
    numbers, scales = round_lines(x)
    wide = numbers.float() * scales[:, None]
    torch.testing.assert_close(wide[0, 1:], x[0, 1:])
    assert wide[1:].abs().max() <= 1e-20


def test_a_block_in_fp8_has_its_scales_behind_it() -> None:
    assert block_shape(2, 16, 128, FP8) == (2, 16 * 132)
    assert block_shape(2, 16, 128, torch.bfloat16) == (2, 16, 128)
