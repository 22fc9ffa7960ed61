"""The kernels in C compute what the reference says, whatever the processor has to offer."""

from __future__ import annotations

import ctypes

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from quire.backends.choose import kernels_for, torch_kernels
from quire.backends.cpu.native.kernels import NativeKernels, fits, native_kernels
from quire.backends.cpu.native.library import TYPES
from quire.backends.cpu.native.library import library as the_library
from quire.backends.ops import AttentionInputs, HeadNorms, HeadShape
from tests.backends.passes import random_pass
from tests.backends.reference import ReferenceKernels
from tests.testing.pairs import in_pairs

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}
SHAPES = [
    (4, 2, 16, 4),
    (9, 3, 64, 16),
    (6, 1, 8, 3),
    (2, 2, 40, 16),
    (12, 1, 16, 1),
    (14, 2, 64, 48),
    (8, 1, 256, 16),
    (4, 2, 512, 16),
    (71, 1, 32, 16),
    (3, 3, 80, 128),
]


def close(a: Tensor, b: Tensor, dtype: torch.dtype | None = None) -> bool:
    limit = TOLERANCE[dtype or a.dtype]
    return a.dtype == b.dtype and torch.allclose(a.float(), b.float(), atol=limit, rtol=limit)


def keys_turned(cache: Tensor, pairs: int = 1) -> Tensor:
    """A cache whose keys lie as the kernels in C want them: [D, S] in a block of [S, D]; with
    `pairs` of 2, as AMX wants them: [D / 2, S, 2]."""
    blocks, heads, slots, width = cache[0].shape
    turned = cache.clone()
    apart = cache[0].view(blocks, heads, slots, width // pairs, pairs)
    turned[0] = apart.transpose(2, 3).reshape(cache[0].shape)
    return turned


def keys_back(cache: Tensor, pairs: int = 1) -> Tensor:
    blocks, heads, slots, width = cache[0].shape
    back = cache.clone()
    apart = cache[0].view(blocks, heads, width // pairs, slots, pairs)
    back[0] = apart.transpose(2, 3).reshape(cache[0].shape)
    return back


def pairs_of(library: ctypes.CDLL, shape: HeadShape, dtype: torch.dtype) -> int:
    """How many channels of a key lie together in a cache of this type."""
    return 2 if library.quire_lies_in_tiles(TYPES[dtype], shape.head_dim) else 1


def check_pass(
    library: ctypes.CDLL,
    shape: HeadShape,
    window: int | None,
    *,
    seed: int = 0,
    shared: int = 0,
    cache_dtype: torch.dtype | None = None,
) -> Tensor:
    inputs, num_blocks = random_pass(shape, seed, shared=shared)
    made = torch.Generator().manual_seed(seed)

    def values(*size: int) -> Tensor:
        return torch.randn(*size, generator=made).to(shape.dtype)

    num_tokens, kept = inputs.slots.shape[0], cache_dtype or shape.dtype
    size = (2, num_blocks, shape.num_kv_heads, shape.block_size, shape.head_dim)
    cache = values(*size).to(kept)
    qkv = values(num_tokens, shape.num_heads + 2 * shape.num_kv_heads, shape.head_dim)
    num_turned = shape.num_heads + shape.num_kv_heads
    angles = torch.randn(num_tokens, shape.head_dim // 2, generator=made)
    turns = (angles.cos(), angles.sin())
    judge = ReferenceKernels(shape).plan_attention(inputs, window)
    step = NativeKernels(shape, library).plan_attention(inputs, window)
    pairs = pairs_of(library, shape, kept)
    expected_cache, own_cache = cache.to(shape.dtype), keys_turned(cache, pairs)
    qk, v = qkv[:, :num_turned], qkv[:, num_turned:]
    expected_q = judge.rope_and_store(qk, v, *turns, *expected_cache)
    q = step.rope_and_store(qk, v, *turns, *own_cache)
    assert close(q, expected_q)
    back = keys_back(own_cache, pairs).to(shape.dtype)
    assert close(back, expected_cache, kept)
    attended = step.attend(q, *own_cache)
    # In tiles all factors are as short as the cache's.
    assert close(attended, judge.attend(q, *back), kept if pairs == 2 else None)
    return attended


@pytest.mark.parametrize(("dtype", "window", "sizes"), in_pairs([*TOLERANCE], [None, 70], SHAPES))
def test_attention(
    library: ctypes.CDLL,
    dtype: torch.dtype,
    window: int | None,
    sizes: tuple[int, int, int, int],
) -> None:
    check_pass(library, HeadShape(*sizes, dtype), window)


@pytest.mark.parametrize("window", [1, 64, 65])
def test_windows_that_end_at_a_tile(library: ctypes.CDLL, window: int) -> None:
    check_pass(library, HeadShape(9, 3, 64, 16, torch.float32), window, seed=5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_cache_of_fewer_bits_than_the_model(library: ctypes.CDLL, dtype: torch.dtype) -> None:
    check_pass(library, HeadShape(9, 3, 64, 16, torch.float32), None, cache_dtype=dtype)


@pytest.mark.parametrize("sizes", [(9, 3, 64, 16), (4, 1, 16, 24), (2, 2, 8, 1)], ids=str)
def test_a_shared_prefix_changes_no_bit(
    library: ctypes.CDLL, sizes: tuple[int, int, int, int]
) -> None:
    shape = HeadShape(*sizes, torch.float32)
    shared = 150 // shape.block_size
    grouped = check_pass(library, shape, None, shared=shared)
    inputs, _ = random_pass(shape, 0, shared=shared)
    alone = AttentionInputs(
        inputs.query_starts, inputs.context_lens, inputs.tables, inputs.slots, inputs.num_prefill
    )
    assert inputs.prefixes and grouped.isfinite().all()
    kernels = NativeKernels(shape, library)
    made = torch.Generator().manual_seed(3)
    num_blocks = int(inputs.tables.max()) + 1
    cache = torch.randn(
        2, num_blocks, shape.num_kv_heads, shape.block_size, shape.head_dim, generator=made
    )
    q = torch.randn(len(inputs.slots), shape.num_heads, shape.head_dim, generator=made)
    together = kernels.plan_attention(inputs, None).attend(q, *cache)
    assert torch.equal(together, kernels.plan_attention(alone, None).attend(q, *cache))


def test_what_was_never_written_is_never_read(library: ctypes.CDLL) -> None:
    kernels = NativeKernels(HeadShape(4, 2, 16, 16, torch.float32), library)
    cache = torch.full((2, 5, 2, 16, 16), torch.nan)
    kernels.clear_blocks(cache, torch.tensor([1, 4]))
    check_never_written(kernels, cache)
    assert cache.isnan().any()


def check_never_written(kernels: NativeKernels, cache: Tensor) -> None:
    """NaN in the unused slots of a last block, and in blocks of nobody, reaches no result."""
    width = cache.shape[-1]
    slots = torch.tensor([*range(48, 64), *range(16, 20), *range(64, 67)])
    inputs = AttentionInputs(
        torch.tensor([0, 20, 23]),
        torch.tensor([20, 3]),
        torch.tensor([[3, 1], [4, -1]]),
        slots,
        2,
    )
    qkv = torch.randn(23, 8, width)
    step = kernels.plan_attention(inputs, None)
    turns = torch.ones(23, width // 2), torch.zeros(23, width // 2)
    q = step.rope_and_store(qkv[:, :6], qkv[:, 6:], *turns, *cache)
    assert step.attend(q, *cache).isfinite().all()


def test_nan_in_a_row_stays_in_its_row(library: ctypes.CDLL) -> None:
    shape = HeadShape(4, 2, 16, 16, torch.float32)
    inputs, num_blocks = random_pass(shape, 1)
    cache = torch.randn(2, num_blocks, 2, 16, 16)
    q = torch.randn(len(inputs.slots), 4, 16)
    q[5, 1, 3] = torch.nan
    made = NativeKernels(shape, library).plan_attention(inputs, None).attend(q, *cache)
    bad = made.view(-1, 4, 16).isnan().any(-1)
    assert bad[5, 1] and bad.sum() == 1


def test_padding_is_defined(library: ctypes.CDLL) -> None:
    shape = HeadShape(4, 2, 16, 16, torch.float32)
    inputs, num_blocks = random_pass(shape, 1)
    q = torch.randn(len(inputs.slots) + 7, 4, 16)
    step = NativeKernels(shape, library).plan_attention(inputs, None)
    assert (step.attend(q, *torch.randn(2, num_blocks, 2, 16, 16))[-7:] == 0).all()


@pytest.mark.parametrize("dtype", TOLERANCE)
@settings(max_examples=15, deadline=None)
@given(rows=st.integers(1, 70), width=st.integers(1, 200), seed=st.integers(0, 2**32))
def test_norms_and_gates(dtype: torch.dtype, rows: int, width: int, seed: int) -> None:
    found = the_library()
    if found is None:
        pytest.skip("no native kernels here")
    made = torch.Generator().manual_seed(seed)

    def values(*size: int) -> Tensor:
        return (torch.randn(*size, generator=made) * 4).to(dtype)

    shape = HeadShape(4, 2, 16, 16, dtype)
    judge = ReferenceKernels(shape)
    x, weight, residual = values(rows, width), values(width), values(rows, width)
    try:
        for features in (-1, 8, 0):
            found.quire_allow(features)
            kernels = NativeKernels(shape, found)
            assert close(kernels.rms_norm(x, weight, 1e-5), judge.rms_norm(x, weight, 1e-5))
            ours, theirs = residual.clone(), residual.clone()
            normed = kernels.add_rms_norm(x, ours, weight, 1e-5)
            assert close(normed, judge.add_rms_norm(x, theirs, weight, 1e-5))
            assert torch.equal(ours, theirs)
            gate_up = values(rows, 2 * width) * 10
            assert close(kernels.gate("silu")(gate_up), judge.gate("silu")(gate_up))
    finally:
        found.quire_allow(-1)


def test_a_norm_of_heads_that_lie_apart(library: ctypes.CDLL) -> None:
    shape = HeadShape(4, 2, 16, 16, torch.float32)
    qkv, weight = torch.randn(5, 8, 16), torch.randn(16)
    before = qkv.clone()
    made = NativeKernels(shape, library).rms_norm(qkv[:, 2:5], weight, 1e-6)
    assert close(made, ReferenceKernels(shape).rms_norm(qkv[:, 2:5], weight, 1e-6))
    assert torch.equal(qkv, before)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_heads_normed_on_the_way(library: ctypes.CDLL, dtype: torch.dtype) -> None:
    shape = HeadShape(6, 2, 24, 16, dtype)
    inputs, num_blocks = random_pass(shape, 4)
    count = len(inputs.slots)
    qkv = torch.randn(count, 10, 24).to(dtype)
    weights = torch.randn(2, 24).to(dtype)
    angles = torch.randn(count, 12)
    turns = angles.cos(), angles.sin()
    caches = torch.zeros(2, 2, num_blocks, 2, 16, 24, dtype=dtype)
    step = NativeKernels(shape, library).plan_attention(inputs, None)
    norms = HeadNorms(weights[0], weights[1], 1e-6)
    q = step.rope_and_store(
        qkv[:, :8], qkv[:, 8:], turns[0], turns[1], caches[0][0], caches[0][1], norms
    )
    judge = ReferenceKernels(shape)
    normed = [judge.rms_norm(qkv[:, :6], weights[0], 1e-6)]
    normed.append(judge.rms_norm(qkv[:, 6:8], weights[1], 1e-6))
    other = judge.plan_attention(inputs, None)
    assert close(q, other.rope_and_store(torch.cat(normed, 1), qkv[:, 8:], *turns, *caches[1]))
    assert close(keys_back(caches[0]), caches[1])


def test_the_cpu_gets_them_where_they_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = HeadShape(4, 2, 16, 16, torch.float32)
    if the_library() is not None:
        assert isinstance(kernels_for("cpu", shape, batch_invariant=False), NativeKernels)
    wide = HeadShape(2, 2, 1024, 16, torch.float32)
    assert not fits(wide) and native_kernels(wide, batch_invariant=False) is None
    monkeypatch.setattr("quire.backends.cpu.native.kernels.library", lambda: None)
    for kept in (False, True):
        plain = torch_kernels(shape, batch_invariant=kept)
        assert type(kernels_for("cpu", shape, batch_invariant=kept)) is type(plain)
