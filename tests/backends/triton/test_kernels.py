"""TritonKernels behind quire.backends.ops: whole passes, and blocks copied and cleared."""

from __future__ import annotations

import pytest
import torch

from quire.backends.ops import HeadShape
from quire.backends.reference import ReferenceKernels
from tests.backends.test_ops import random_inputs, run_attention
from tests.backends.triton.checks import Place, assert_close


@pytest.mark.skipif(torch.cuda.is_available(), reason="inputs on the CPU: for the interpreter")
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
