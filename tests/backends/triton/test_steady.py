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
from tests.backends.triton.checks import Place, assert_close, expected_attention, paged
from tests.backends.triton.places import GPU_DTYPES, small_places

SHAPES = [(4, 2, 16, 8), (3, 1, 80, 16), (2, 2, 32, 16)]


def check_steady_decode(
    place: Place,
    shape: HeadShape,
    lengths: list[int],
    shared: tuple[tuple[int, tuple[int, ...]], ...] = (),
) -> torch.Tensor:
    """Ragged rows, some empty; tables are reached by way of `rows`."""
    made, num_rows = paged(place, shape, lengths, shared=shared), len(lengths)
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
    attention = SteadyDecode(shape, buffers, num_rows, prefixes=work)
    rows = torch.arange(num_rows - 1, -1, -1, dtype=torch.int32, device=place.device)
    attention.plan(made.lengths, made.tables.flip(0).contiguous(), rows)
    out = attention.attend(q, made.keys, made.values)
    active = made.lengths.cpu() > 0
    starts = torch.arange(int(active.sum()) + 1)
    inputs = AttentionInputs(
        starts, made.lengths.cpu()[active], made.tables.cpu()[active], starts, 0
    )
    expected = torch.zeros(num_rows, shape.num_heads * shape.head_dim)
    expected[active] = expected_attention(shape, q[active.to(q.device)], inputs, made, None)
    assert_close(out, expected.to(place.dtype))
    if shared and place.device.type == "cuda":
        alone = SteadyDecode(shape, buffers, num_rows)
        alone.plan(made.lengths, made.tables)
        assert torch.equal(alone.attend(q, made.keys, made.values), out)
    return out


def check_steady_prefill(place: Place, shape: HeadShape, slices: list[tuple[int, int]]) -> None:
    made = paged(place, shape, [new + past for new, past in slices])
    starts = torch.tensor([0, *(new for new, _ in slices)]).cumsum(0)
    q = place.random(int(starts[-1]), shape.num_heads, shape.head_dim, seed=12)
    attention = SteadyPrefill(
        *(shape, starts.to(place.device), made.lengths, made.tables, len(q)),
        tile=steady_tiles(shape)[1],
    )
    out = q.new_full((len(q), shape.num_heads * shape.head_dim), torch.nan)
    attention.attend(q, made.keys, made.values, out)
    inputs = AttentionInputs(starts, made.lengths, made.tables, starts, len(slices))
    assert_close(out, expected_attention(shape, q, inputs, made, None).to(place.dtype))


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
        assert [one[:7] for one in items[at : at + count]] == [
            [row, begin, end, row, i, count, count]
            for i, (begin, end) in enumerate(zip(cuts, ends, strict=True))
        ]
        assert pieces.whole_pieces(length) == max([0, *(x for x in begins if x <= length)])
        at += count
    assert attention._total.item() == at


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", GPU_DTYPES)
@pytest.mark.parametrize("heads", [(16, 8, 128), (32, 8, 64), (8, 8, 128), (71, 1, 64)])
def test_decode_rows_and_prompts_get_the_same_bits(
    dtype: torch.dtype, heads: tuple[int, int, int]
) -> None:
    """Every token of a context as a decode row among others, and in chunks of any size."""
    place, shape = Place(torch.device("cuda"), dtype), HeadShape(*heads, 16, dtype)
    length = 5000
    made = paged(place, shape, [length])
    q = place.random(length, shape.num_heads, shape.head_dim, seed=3)
    whole = _in_chunks(shape, made.tables, made.keys, made.values, q, [length])
    for cut in ([1000, 1, 63, 3936], [4999, 1], [256] * 19 + [136]):
        assert torch.equal(_in_chunks(shape, made.tables, made.keys, made.values, q, cut), whole)
    for batch in ([4999], [0, 63, 511, 512, 600, 4096, 4998], list(range(0, 5000, 9))):
        lengths = torch.tensor([at + 1 for at in batch], dtype=torch.int32, device=q.device)
        buffers = SteadyBuffers.make(shape, len(batch), length, q.device)
        attention = SteadyDecode(shape, buffers, len(batch))
        attention.plan(lengths, made.tables.expand(len(batch), -1).contiguous())
        assert torch.equal(attention.attend(q[batch], made.keys, made.values), whole[batch])


def _in_chunks(
    shape: HeadShape,
    tables: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    q: torch.Tensor,
    sizes: list[int],
) -> torch.Tensor:
    made, at = [], 0
    for size in sizes:
        starts = torch.tensor([0, size], device=q.device)
        lengths = torch.tensor([at + size], dtype=torch.int32, device=q.device)
        tile = steady_tiles(shape)[1]
        step = SteadyPrefill(shape, starts, lengths, tables, size, tile=tile)
        out = q.new_empty(size, shape.num_heads * shape.head_dim)
        made.append(step.attend(q[at : at + size], keys, values, out))
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
