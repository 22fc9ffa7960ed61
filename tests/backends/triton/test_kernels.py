"""TritonKernels behind quire.backends.ops: whole passes, and blocks copied and cleared."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from quire.backends.fp8 import block_shape
from quire.backends.ops import HeadShape
from tests.backends.reference import ReferenceKernels
from tests.backends.test_ops import random_inputs, run_attention
from tests.backends.triton.checks import Place, assert_close
from tests.backends.two_way_checks import NUM_BLOCKS, attended, meant

ON_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="fp8 needs a GPU")


@pytest.mark.interpreted
@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("shared", [0, 3])
def test_a_pass_of_slices_and_decode_rows(window: int | None, shared: int) -> None:
    from quire.backends.triton.kernels import TritonKernels

    shape = HeadShape(4, 2, 16, 8, torch.float32)
    inputs = random_inputs(shape, 3, shared=shared)
    expected, expected_cache = run_attention(ReferenceKernels(shape), shape, inputs, window)
    made, cache = run_attention(TritonKernels(shape), shape, inputs, window)
    assert_close(made, expected)
    assert_close(cache, expected_cache)


@pytest.mark.parametrize("fp8", [False, pytest.param(True, marks=ON_GPU)])
@pytest.mark.parametrize("window", [None, 5])
def test_tokens_of_a_span_see_each_other(window: int | None, fp8: bool) -> None:
    from quire.backends.triton.kernels import TritonKernels

    on_gpu = torch.cuda.is_available()
    device, dtype = ("cuda", torch.bfloat16) if on_gpu else ("cpu", torch.float32)
    shape = HeadShape(4, 2, 16, 8, dtype, fp8_kv=fp8)
    lies = block_shape(shape.num_kv_heads, shape.block_size, shape.head_dim, shape.kv_dtype)
    cache = torch.zeros(2, NUM_BLOCKS, *lies, dtype=shape.kv_dtype, device=device)
    made, _ = attended(TritonKernels(shape), shape, cache, window, True)
    limit = 0.15 if fp8 else 0.03 if on_gpu else 2e-5
    expected = meant(replace(shape, fp8_kv=False), window)
    assert (made.cpu().float() - expected.float()).abs().max() < limit


@pytest.mark.parametrize("copies", [((1, 2), (3, 4)), ((1, 2), (2, 5), (7, 1)), ()])
def test_blocks_are_copied_in_order(copies: tuple[tuple[int, int], ...]) -> None:
    from quire.backends.triton.kernels import TritonKernels

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    shape = HeadShape(2, 1, 16, 8, torch.float32)
    cache = Place(device, torch.float32).random(3, 2, 8, 1, 8, 16, seed=1)
    expected = cache.clone()
    ReferenceKernels(shape).copy_blocks(expected, copies)
    TritonKernels(shape).copy_blocks(cache, copies)
    assert torch.equal(cache, expected)


def test_pairs_of_minus_one_copy_nothing() -> None:
    from quire.backends.triton.blocks import copy_blocks

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    cache = Place(device, torch.float32).random(1, 2, 4, 1, 8, 16, seed=1)
    expected = cache.clone()
    expected[:, :, 3] = cache[:, :, 0]
    copy_blocks(cache, torch.tensor([[-1, -1], [0, 3]], dtype=torch.int32, device=device))
    assert torch.equal(cache, expected)
