"""Attention that is cut by position alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from quire.backends import pieces
from quire.backends.ops import AttentionInputs, HeadShape
from quire.backends.triton.steady import SteadyBuffers, SteadyDecode, SteadyPrefill
from quire.backends.triton.steady_prefix import SteadyPrefixWork, steady_size
from quire.backends.triton.tiles import steady_tiles
from tests.backends.triton.checks import (
    Paged,
    Place,
    assert_close,
    expected_attention,
    paged,
    sinks_on,
)
from tests.backends.triton.places import GPU_DTYPES, small_places

SHAPES = [(4, 2, 16, 8), (3, 1, 80, 16), (2, 2, 32, 16)]


def check_steady_decode(
    place: Place,
    shape: HeadShape,
    lengths: list[int],
    shared: tuple[tuple[int, tuple[int, ...]], ...] = (),
    window: int | None = None,
) -> torch.Tensor:
    """Ragged rows, some empty; tables are reached by way of `rows`."""
    made, num_rows = paged(place, shape, lengths, shared=shared), len(lengths)
    if not shared:
        made.give_back([length - 1 for length in lengths], window, shape.block_size)
    q = place.random(num_rows, shape.num_heads, shape.head_dim, seed=11)
    buffers = SteadyBuffers.make(shape, num_rows, max(lengths), place.device)
    buffers.parts.fill_(torch.nan)
    work = None
    if shared:
        size, tile = steady_size(shape, num_rows), steady_tiles(shape)[1]
        work = SteadyPrefixWork(shape, num_rows, place.device, size, tile=tile)
        tables = made.tables.cpu().numpy()
        groups = [(tables[rows[0], :count], np.asarray(rows, np.int32)) for count, rows in shared]
        assert work.fill(groups) == sum(len(rows) for _, rows in shared)
    attention = SteadyDecode(shape, buffers, num_rows, window=window, prefixes=work)
    rows = torch.arange(num_rows - 1, -1, -1, dtype=torch.int32, device=place.device)
    attention.plan(made.lengths, made.tables.flip(0).contiguous(), rows)
    out = attention.attend(q, made.keys, made.values, sinks=sinks_on(place, shape))
    active = made.lengths.cpu() > 0
    starts = torch.arange(int(active.sum()) + 1)
    inputs = AttentionInputs(
        starts, made.lengths.cpu()[active], made.tables.cpu()[active], starts, 0
    )
    expected = torch.zeros(num_rows, shape.num_heads * shape.head_dim)
    expected[active] = expected_attention(shape, q[active.to(q.device)], inputs, made, window)
    assert_close(out, expected.to(place.dtype))
    if shared and place.device.type == "cuda":
        alone = SteadyDecode(shape, buffers, num_rows)
        alone.plan(made.lengths, made.tables)
        assert torch.equal(alone.attend(q, made.keys, made.values), out)
    return out


def check_steady_prefill(
    place: Place, shape: HeadShape, slices: list[tuple[int, int]], window: int | None = None
) -> None:
    made = paged(place, shape, [new + past for new, past in slices])
    made.give_back([past for _, past in slices], window, shape.block_size)
    starts = torch.tensor([0, *(new for new, _ in slices)]).cumsum(0)
    q = place.random(int(starts[-1]), shape.num_heads, shape.head_dim, seed=12)
    attention = SteadyPrefill(
        *(shape, starts.to(place.device), made.lengths, made.tables, len(q)),
        window=window,
        tile=steady_tiles(shape)[1],
    )
    out = q.new_full((len(q), shape.num_heads * shape.head_dim), torch.nan)
    attention.attend(q, made.keys, made.values, out, sinks_on(place, shape))
    inputs = AttentionInputs(starts, made.lengths, made.tables, starts, len(slices))
    assert_close(out, expected_attention(shape, q, inputs, made, window).to(place.dtype))


@pytest.mark.parametrize("place", small_places())
@pytest.mark.parametrize(("heads", "kv_heads", "width", "slots"), SHAPES)
def test_decode(place: Place, heads: int, kv_heads: int, width: int, slots: int) -> None:
    shape = HeadShape(heads, kv_heads, width, slots, place.dtype)
    check_steady_decode(place, shape, [37, 0, 513, 16, 0, 1100])


@pytest.mark.parametrize("place", small_places())
@pytest.mark.parametrize(("heads", "kv_heads", "width", "slots"), SHAPES[:2])
def test_prefixes_are_shared_in_whole_pieces(
    place: Place, heads: int, kv_heads: int, width: int, slots: int
) -> None:
    """Of two levels; one ends within a piece, and a row of each group rests."""
    shape = HeadShape(heads, kv_heads, width, slots, place.dtype)
    outer, inner = 600 // slots, 1100 // slots
    shared = ((outer, (0, 1, 2, 3, 4)), (inner, (1, 3, 4)))
    check_steady_decode(place, shape, [700, 1130, 601, 0, 1600, 40], shared)


@pytest.mark.parametrize("place", small_places())
@pytest.mark.parametrize(("heads", "kv_heads", "width", "slots"), SHAPES)
def test_prefill(place: Place, heads: int, kv_heads: int, width: int, slots: int) -> None:
    shape = HeadShape(heads, kv_heads, width, slots, place.dtype)
    check_steady_prefill(place, shape, [(50, 0), (1, 511), (40, 490), (5, 1100)])


@pytest.mark.parametrize("place", small_places())
@pytest.mark.parametrize("window", [1, 100, 600])
@pytest.mark.parametrize("sinks", [False, True])
def test_windows_and_sinks(place: Place, window: int, sinks: bool) -> None:
    """Within a piece, across one and across two; blocks behind a window are somebody else's."""
    shape = HeadShape(3, 1, 80, 16, place.dtype, sinks=sinks)
    check_steady_decode(place, shape, [37, 0, 513, 16, 1100, 1030], window=window)
    check_steady_prefill(place, shape, [(50, 0), (1, 511), (40, 490), (5, 1100)], window)


@pytest.mark.parametrize("place", small_places())
def test_a_piece_need_not_end_where_a_block_does(place: Place) -> None:
    shape = HeadShape(4, 2, 16, 384, place.dtype)
    check_steady_decode(place, shape, [600, 383, 1030], window=500)
    check_steady_prefill(place, shape, [(40, 490), (5, 700)], window=500)


def test_pieces_are_counted_and_begin_where_positions_say() -> None:
    """The device's own arithmetic against the host's, at every kind of boundary."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    shape = HeadShape(1, 1, 16, 16, torch.float32)
    edges = [0, 1, 512, 513, 4095, 4096, 4097, 6144, 6145, 32768, 32769, 40960, 60_000]
    buffers = SteadyBuffers.make(shape, len(edges), max(edges), device)
    attention = SteadyDecode(shape, buffers, len(edges))
    tables = torch.zeros(len(edges), 4, dtype=torch.int32, device=device)
    attention.plan(torch.tensor(edges, dtype=torch.int32, device=device), tables)
    items, at = attention._items.tolist(), 0
    shorts = list(range(0, pieces.FIRST_END, pieces.SHORT))
    middles = list(range(pieces.FIRST_END, pieces.SECOND_END, pieces.MIDDLE))
    begins = [*shorts, *middles, *range(pieces.SECOND_END, 10**5, pieces.LARGE)]
    for row, length in enumerate(edges):
        cuts = [begin for begin in begins if begin < length] or [0]
        count = len(cuts)
        assert count == pieces.most_pieces(length)
        ends = [*cuts[1:], length]
        assert items[at : at + count] == [
            [row, begin, end, row, i, count, count, 0]
            for i, (begin, end) in enumerate(zip(cuts, ends, strict=True))
        ]
        assert pieces.whole_pieces(length) == max([0, *(x for x in begins if x <= length)])
        at += count
    assert attention._total.item() == at


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", GPU_DTYPES)
@pytest.mark.parametrize("heads", [(16, 8, 128), (32, 8, 64), (8, 8, 128), (71, 1, 64)])
@pytest.mark.parametrize(("window", "sinks"), [(None, False), (128, True), (1000, False)])
def test_decode_rows_and_prompts_get_the_same_bits(
    dtype: torch.dtype, heads: tuple[int, int, int], window: int | None, sinks: bool
) -> None:
    """Every token of a context as a decode row among others, and in chunks of any size."""
    place = Place(torch.device("cuda"), dtype)
    shape, length = HeadShape(*heads, 16, dtype, sinks=sinks), 5000
    made, beside = paged(place, shape, [length]), sinks_on(place, shape)
    q = place.random(length, shape.num_heads, shape.head_dim, seed=3)
    given = (shape, made, q, window)
    whole = _in_chunks(*given, [length])
    for cut in ([1000, 1, 63, 3936], [4999, 1], [256] * 19 + [136]):
        assert torch.equal(_in_chunks(*given, cut), whole)
    for batch in ([4999], [0, 63, 511, 512, 600, 4096, 4998], list(range(0, 5000, 9))):
        lengths = torch.tensor([at + 1 for at in batch], dtype=torch.int32, device=q.device)
        buffers = SteadyBuffers.make(shape, len(batch), length, q.device)
        attention = SteadyDecode(shape, buffers, len(batch), window=window)
        attention.plan(lengths, made.tables.expand(len(batch), -1).contiguous())
        alone = attention.attend(q[batch], made.keys, made.values, sinks=beside)
        assert torch.equal(alone, whole[batch])


def _in_chunks(
    shape: HeadShape, context: Paged, q: torch.Tensor, window: int | None, sizes: list[int]
) -> torch.Tensor:
    made, at = [], 0
    beside = sinks_on(Place(q.device, q.dtype), shape)
    for size in sizes:
        starts = torch.tensor([0, size], device=q.device)
        lengths = torch.tensor([at + size], dtype=torch.int32, device=q.device)
        tile = steady_tiles(shape)[1]
        given = (shape, starts, lengths, context.tables, size)
        step = SteadyPrefill(*given, window=window, tile=tile)
        out = q.new_empty(size, shape.num_heads * shape.head_dim)
        made.append(step.attend(q[at : at + size], context.keys, context.values, out, beside))
        at += size
    return torch.cat(made)


@pytest.mark.gpu
def test_steady_attention_at_real_shapes() -> None:
    place = Place(torch.device("cuda"), torch.bfloat16)
    shape = HeadShape(16, 8, 128, 16, torch.bfloat16)
    check_steady_decode(place, shape, [(i * 977) % 2500 for i in range(60)] + [9000])
    shared = ((70, tuple(range(50))), (320, tuple(range(3, 30))))
    check_steady_decode(place, shape, [5200 + i for i in range(60)], shared)
    check_steady_prefill(place, shape, [(700, 0), (130, 900), (1, 33), (64, 64), (10, 5000)])
