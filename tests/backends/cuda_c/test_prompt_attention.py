"""Attention of prompts in CUDA C++: its tiles anywhere, what it computes on a GPU."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch

from quire.backends.cuda_c import nvrtc
from quire.backends.cuda_c.nvrtc import NoCudaC
from quire.backends.cuda_c.prompt_attention import (
    PromptAttention,
    kernel_of,
    list_tiles,
    serves,
)
from quire.backends.ops import AttentionInputs, HeadShape
from quire.backends.triton.kernels import TritonKernels
from quire.backends.triton.widen import WidenedAttention
from tests.backends.triton.checks import Paged, assert_close, expected_attention, paged
from tests.backends.triton.checks import Place as At

BF16, F16 = torch.bfloat16, torch.float16
Slices = Sequence[tuple[int, int]]  # new tokens, and those before them
RAGGED = [(300, 0), (1, 0), (77, 200), (5, 1000), (640, 333), (1024, 0), (17, 4), (128, 128)]


@pytest.mark.parametrize("per_tile", [1, 4, 18, 128])
def test_tiles_cover_every_token_once_and_the_longest_come_first(per_tile: int) -> None:
    """Sequences without tokens, which fill up a captured pass, have none."""
    drawn = random.Random(per_tile)
    for count in (1, 2, 40):
        new = [drawn.choice((0, 1, 3, per_tile, 5 * per_tile + 1)) for _ in range(count)] + [7, 0]
        past = [drawn.choice((0, 1, 1000)) if one else 0 for one in new]
        starts = torch.tensor([0, *new]).cumsum(0)
        contexts = torch.tensor(new) + torch.tensor(past)
        tiles, num_tiles = list_tiles(starts, contexts, sum(new), per_tile)
        expected = [
            (first, int(starts[i]) + new[i], new[i] + past[i], i)
            for i in range(len(new))
            for first in range(int(starts[i]), int(starts[i]) + new[i], per_tile)
        ]
        made = [tuple(tile) for tile in tiles[: int(num_tiles)].tolist()]
        assert sorted(made) == sorted(expected)
        seen = [context - end + min(first + per_tile, end) for first, end, context, _ in made]
        assert seen == sorted(seen, reverse=True)


def test_other_heads_and_devices_stay_with_triton() -> None:
    plain = HeadShape(4, 2, 128, 16, BF16)
    assert not serves(plain, torch.device("cpu"))
    assert kernel_of(plain, False, torch.device("cpu")) is None


def pass_over(place: At, shape: HeadShape, slices: Slices) -> tuple[AttentionInputs, Paged]:
    made = paged(place, shape, [new + past for new, past in slices])
    starts = torch.tensor([0, *(new for new, _ in slices)]).cumsum(0).to(place.device)
    return AttentionInputs(starts, made.lengths, made.tables, starts, len(slices)), made


def check(shape: HeadShape, slices: Slices, window: int | None = None) -> None:
    """As the reference; what is nobody's in the cache is NaN, and so is what is behind a window,
    where a table may also name no block."""
    place = At(torch.device("cuda"), shape.dtype)
    inputs, made = pass_over(place, shape, slices)
    made.give_back([past for _, past in slices], window, shape.block_size)
    num_tokens = sum(new for new, _ in slices)
    q = place.random(num_tokens, shape.num_heads, shape.head_dim, seed=12)
    attention = TritonKernels(shape).prefill_attention(inputs, num_tokens, window)
    assert isinstance(attention, PromptAttention | WidenedAttention)
    expected = expected_attention(shape, q, inputs, made, window).to(shape.dtype)
    sinks = torch.linspace(-4.0, 4.0, shape.num_heads, device="cuda") if shape.sinks else None
    for _ in range(2):  # the counters are set back
        out = q.new_full((num_tokens, shape.num_heads * shape.head_dim), torch.nan)
        assert_close(attention.attend(q, made.keys, made.values, out, sinks), expected)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("heads", "kv_heads", "width", "slots", "dtype"),
    [
        (32, 8, 128, 16, BF16),
        (16, 8, 128, 16, F16),
        (4, 4, 128, 32, BF16),
        (9, 3, 64, 16, BF16),
        (14, 2, 64, 8, F16),
        (32, 1, 128, 128, BF16),
    ],
)
@pytest.mark.parametrize("window", [None, 1, 100, 300])
def test_ragged_prompts(
    heads: int, kv_heads: int, width: int, slots: int, dtype: torch.dtype, window: int | None
) -> None:
    check(HeadShape(heads, kv_heads, width, slots, dtype), RAGGED, window)


@pytest.mark.gpu
def test_sinks_and_a_scale_of_their_own() -> None:
    check(HeadShape(16, 2, 64, 16, BF16, sinks=True), RAGGED, 128)
    check(HeadShape(16, 2, 64, 16, BF16, sinks=True, own_scale=0.3), RAGGED)


@pytest.mark.gpu
@pytest.mark.parametrize("width", [64, 128])
def test_blocks_before_a_window_need_no_name(width: int) -> None:
    """As behind a cached prefix."""
    shape = HeadShape(16, 4, width, 16, BF16, sinks=width == 64)
    check(shape, [(16, 240)] * 4, 128)
    check(shape, RAGGED, 100)


@pytest.mark.gpu
@pytest.mark.parametrize("window", [None, 100])
def test_a_cache_in_fp8(window: int | None) -> None:
    check(HeadShape(16, 8, 128, 16, BF16, fp8_kv=True), RAGGED, window)


@pytest.mark.gpu
def test_more_tiles_than_cores_and_long_contexts() -> None:
    check(HeadShape(8, 2, 128, 16, BF16), [(33, 0)] * 400)
    check(HeadShape(4, 1, 128, 16, BF16), [(70, 100_000), (2000, 9000)])


@pytest.mark.gpu
def test_a_captured_pass_lists_its_tiles_anew() -> None:
    shape = HeadShape(8, 2, 128, 16, BF16)
    place = At(torch.device("cuda"), BF16)
    kernels = TritonKernels(shape)
    inputs, made = pass_over(place, shape, [(150, 40), (60, 0), (0, 0)])
    q = place.random(210, 8, 128, seed=1)
    out = q.new_zeros(210, 8 * 128)
    graph = torch.cuda.CUDAGraph()
    kernels.prefill_attention(inputs, 210, None).attend(q, made.keys, made.values, out)
    with torch.cuda.graph(graph):
        kernels.prefill_attention(inputs, 210, None).attend(q, made.keys, made.values, out)
    for starts, contexts in (([0, 150, 210, 210], [190, 60, 0]), ([0, 20, 50, 50], [180, 60, 0])):
        inputs.query_starts.copy_(torch.tensor(starts))
        inputs.context_lens.copy_(torch.tensor(contexts))
        out.fill_(torch.nan)
        graph.replay()
        used = starts[-1]
        counted = AttentionInputs(
            inputs.query_starts[:3], inputs.context_lens[:2], inputs.tables[:2], q, 2
        )
        expected = expected_attention(shape, q[:used], counted, made, None).to(BF16)
        assert_close(out[:used], expected)
        assert out[used:].isnan().all()


@pytest.mark.gpu
def test_without_the_compiler_triton_serves_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing() -> None:
        raise NoCudaC("libnvrtc is not installed")

    monkeypatch.setattr(nvrtc, "_library", missing)
    shape = HeadShape(6, 2, 128, 16, BF16, own_scale=0.07)
    device = torch.device("cuda")
    with caplog.at_level("INFO", "quire"):
        assert [kernel_of(shape, False, device) for _ in range(2)] == [None, None]
    assert [record.message.count("libnvrtc") for record in caplog.records] == [1]
