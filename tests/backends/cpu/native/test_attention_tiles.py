"""Attention in AMX's tiles: as accurate as bfloat16 allows, and the same bits in any batch."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from quire.backends.choose import torch_kernels
from quire.backends.cpu.native.kernels import NativeKernels
from quire.backends.cpu.native.library import AMX_BF16, AVX2, AVX512
from quire.backends.cpu.native.library import library as the_library
from quire.backends.ops import AttentionInputs, HeadShape
from tests.backends.cpu.native.test_kernels import check_never_written, check_pass
from tests.backends.passes import random_pass

SHAPES = [
    (9, 3, 64, 16),
    (14, 2, 64, 48),
    (8, 1, 256, 16),
    (71, 1, 32, 16),
    (4, 2, 96, 32),
    (6, 2, 64, 4),
    (2, 2, 32, 24),
]
SHAPE = HeadShape(9, 3, 64, 16, torch.float32)


@pytest.fixture
def tiles() -> ctypes.CDLL:
    """The library, on a processor that has them."""
    found = the_library()
    if found is None or not found.quire_features() & AMX_BF16:
        pytest.skip("this processor has no tiles of bfloat16")
    return found


def random_cache(shape: HeadShape, num_blocks: int) -> Tensor:
    size = (2, num_blocks, shape.num_kv_heads, shape.block_size, shape.head_dim)
    return torch.randn(size).bfloat16()


@pytest.mark.parametrize("window", [None, 1, 64, 70])
@pytest.mark.parametrize("sizes", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_it_computes(
    tiles: ctypes.CDLL, dtype: torch.dtype, sizes: tuple[int, int, int, int], window: int | None
) -> None:
    shape = HeadShape(*sizes, dtype)
    for seed in (0, 1):
        check_pass(tiles, shape, window, seed=seed, shared=5 - seed, cache_dtype=torch.bfloat16)


@pytest.mark.parametrize("sizes", SHAPES, ids=str)
def test_a_row_has_the_same_bits_in_any_batch(
    tiles: ctypes.CDLL, sizes: tuple[int, int, int, int]
) -> None:
    """Every token of a pass, alone as a decode row, gives what it gave in its slice or group."""
    shape = HeadShape(*sizes, torch.float32)
    kernels = NativeKernels(shape, tiles)
    shared = 150 // shape.block_size
    inputs, num_blocks = random_pass(shape, 2, shared=shared)
    assert inputs.prefixes
    cache = random_cache(shape, num_blocks)
    q = torch.randn(len(inputs.slots), shape.num_heads, shape.head_dim) * 3
    together = kernels.plan_attention(inputs, None).attend(q, *cache)
    assert together.isfinite().all()
    starts = inputs.query_starts.tolist()
    lengths, rows = [], []
    for i, length in enumerate(inputs.context_lens.tolist()):
        count = starts[i + 1] - starts[i]
        lengths += [length - count + 1 + t for t in range(count)]
        rows += [i] * count
    alone = AttentionInputs(
        torch.arange(len(q) + 1), torch.tensor(lengths), inputs.tables[rows], inputs.slots, 0
    )
    assert torch.equal(kernels.plan_attention(alone, None).attend(q, *cache), together)
    ungrouped = replace(inputs, prefixes=())
    assert torch.equal(kernels.plan_attention(ungrouped, None).attend(q, *cache), together)


def test_what_was_never_written_is_never_read(tiles: ctypes.CDLL) -> None:
    shape = HeadShape(4, 2, 32, 16, torch.float32)
    kernels = NativeKernels(shape, tiles)
    check_never_written(kernels, torch.full((2, 5, 2, 16, 32), torch.nan).bfloat16())


def test_nan_in_a_row_stays_in_its_row(tiles: ctypes.CDLL) -> None:
    inputs, num_blocks = random_pass(SHAPE, 1)
    q = torch.randn(len(inputs.slots), 9, 64)
    q[5, 1, 3] = torch.nan
    step = NativeKernels(SHAPE, tiles).plan_attention(inputs, None)
    bad = step.attend(q, *random_cache(SHAPE, num_blocks)).view(-1, 9, 64).isnan().any(-1)
    assert bad[5, 1] and bad.sum() == 1


def test_large_scores_do_not_overflow(tiles: ctypes.CDLL) -> None:
    inputs, num_blocks = random_pass(SHAPE, 1)
    q = torch.randn(len(inputs.slots), 9, 64) * 1e4
    step = NativeKernels(SHAPE, tiles).plan_attention(inputs, None)
    assert step.attend(q, *random_cache(SHAPE, num_blocks)).isfinite().all()


def test_keys_are_rounded_only_where_that_is_faster(tiles: ctypes.CDLL) -> None:
    kernels = NativeKernels(SHAPE, tiles)
    assert kernels.kv_dtype_beside_int8() == torch.bfloat16
    odd = replace(SHAPE, head_dim=40)
    assert NativeKernels(odd, tiles).kv_dtype_beside_int8() == torch.float32
    plain = torch_kernels(SHAPE, batch_invariant=True)
    assert plain.kv_dtype_beside_int8() == torch.float32
    tiles.quire_allow(AVX512 | AVX2)
    try:
        assert kernels.kv_dtype_beside_int8() == torch.float32
    finally:
        tiles.quire_allow(-1)
