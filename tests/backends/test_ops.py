"""Every kernel computes what its reference says."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from quire.backends.choose import kernels_for, torch_kernels
from quire.backends.generic import activated, sigmoid, softplus
from quire.backends.ops import AttentionInputs, HeadShape, Kernels
from quire.errors import NotSupported
from tests.backends.passes import random_pass
from tests.backends.reference import ReferenceKernels
from tests.testing.pairs import in_pairs

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}
NUM_BLOCKS = 768


def shape_of(
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 16,
    block_size: int = 4,
    dtype: torch.dtype = torch.float32,
) -> HeadShape:
    return HeadShape(heads, kv_heads, head_dim, block_size, dtype)


def pairs(shape: HeadShape) -> tuple[Kernels, Kernels, Kernels]:
    """(reference, fast, invariant)"""
    fast, invariant = (torch_kernels(shape, batch_invariant=kept) for kept in (False, True))
    return ReferenceKernels(shape), fast, invariant


def close(a: Tensor, b: Tensor) -> bool:
    limit = TOLERANCE[a.dtype]
    return a.dtype == b.dtype and torch.allclose(a.float(), b.float(), atol=limit, rtol=limit)


def random_inputs(
    shape: HeadShape, seed: int, *, shared: int = 0, decode: int = 6
) -> AttentionInputs:
    """Small: NUM_BLOCKS hold it."""
    return random_pass(shape, seed, shared=shared, decode=decode, new=20, past=30)[0]


def run_attention(
    kernels: Kernels, shape: HeadShape, inputs: AttentionInputs, window: int | None
) -> tuple[Tensor, Tensor]:
    """(what attention gives, the cache after it)"""
    made = torch.Generator().manual_seed(1)

    def values(*size: int) -> Tensor:
        return torch.randn(*size, generator=made).to(shape.dtype)

    size = (2, NUM_BLOCKS, shape.num_kv_heads, shape.block_size, shape.head_dim)
    cache, num_tokens = values(*size), inputs.slots.shape[0]
    qk = values(num_tokens, shape.num_heads + shape.num_kv_heads, shape.head_dim)
    v = values(num_tokens, shape.num_kv_heads, shape.head_dim)
    angles = torch.randn(num_tokens, shape.head_dim // 2, generator=made)
    step = kernels.plan_attention(inputs, window)
    q = step.rope_and_store(qk, v, angles.cos(), angles.sin(), *cache)
    return step.attend(q, *cache), cache


@pytest.mark.parametrize(
    ("dtype", "window", "sizes"),
    in_pairs(
        [*TOLERANCE],
        [None, 1, 5, 64],
        [(4, 2, 16, 4), (9, 3, 64, 16), (6, 1, 8, 3), (2, 2, 40, 16), (12, 1, 16, 1)],
    ),
)
def test_attention(
    dtype: torch.dtype, window: int | None, sizes: tuple[int, int, int, int]
) -> None:
    shape = shape_of(*sizes, dtype)
    reference, *others = pairs(shape)
    for seed in range(2):
        inputs = random_inputs(shape, seed)
        expected, expected_cache = run_attention(reference, shape, inputs, window)
        for kernels in others:
            made, cache = run_attention(kernels, shape, inputs, window)
            assert close(made, expected)
            assert close(cache, expected_cache)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("window", [None, 7])
def test_attention_over_a_shared_prefix(dtype: torch.dtype, window: int | None) -> None:
    shape = shape_of(dtype=dtype)
    reference, *others = pairs(shape)
    inputs = random_inputs(shape, 3, shared=9, decode=11)
    expected, _ = run_attention(reference, shape, inputs, window)
    for kernels in others:
        assert close(run_attention(kernels, shape, inputs, window)[0], expected)


def test_a_long_shared_prefix_is_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = shape_of()
    reference, fast, _ = pairs(shape)
    inputs = random_inputs(shape, 3, shared=9, decode=11)
    expected, _ = run_attention(reference, shape, inputs, None)
    monkeypatch.setattr("quire.backends.cpu.attention.PREFIX_SCORES", 2 * 11 * 4 * 4)
    assert close(run_attention(fast, shape, inputs, None)[0], expected)


@pytest.mark.parametrize("limit", [1, 4000, 1 << 30])
def test_buckets_of_any_size_give_the_same(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    shape = shape_of()
    reference, fast, _ = pairs(shape)
    inputs = random_inputs(shape, 5, decode=40)
    expected, _ = run_attention(reference, shape, inputs, None)
    monkeypatch.setattr("quire.backends.cpu.attention.BUCKET_BYTES", limit)
    assert close(run_attention(fast, shape, inputs, None)[0], expected)


def test_long_slices_are_cut_into_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = shape_of()
    reference, fast, _ = pairs(shape)
    monkeypatch.setattr("quire.backends.cpu.attention.QUERY_PIECE", 6)
    for window in (None, 9):
        inputs = random_inputs(shape, 11)
        expected, _ = run_attention(reference, shape, inputs, window)
        assert close(run_attention(fast, shape, inputs, window)[0], expected)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("rows", [1, 3, 16, 65])
def test_ops_of_one_row_each(dtype: torch.dtype, rows: int) -> None:
    reference, *others = pairs(shape_of(dtype=dtype))
    made = torch.Generator().manual_seed(0)
    x, residual, gate_up = (
        (torch.randn(rows, n, generator=made) * 3).to(dtype) for n in (48, 48, 96)
    )
    weight = torch.randn(48, generator=made).to(dtype)
    table, ids = torch.randn(20, 48, generator=made).to(dtype), torch.arange(rows) % 20

    def normed(kernels: Kernels) -> Tensor:
        added = residual.clone()
        out = kernels.add_rms_norm(x, added, weight, 1e-5)
        return torch.cat([out, added])

    ops: list[Callable[[Kernels], Tensor]] = [
        normed,
        lambda kernels: kernels.rms_norm(x, weight, 1e-5),
        lambda kernels: kernels.gate("silu")(gate_up),
        lambda kernels: kernels.embed(ids, table),
    ]
    for op in ops:
        for kernels in others:
            assert close(op(kernels), op(reference))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("bias", [False, True])
def test_linear(dtype: torch.dtype, bias: bool) -> None:
    reference, *others = pairs(shape_of(dtype=dtype))
    made = torch.Generator().manual_seed(0)
    weight = (torch.randn(40, 64, generator=made) / 8).to(dtype)
    added = torch.randn(40, generator=made).to(dtype) if bias else None
    for kernels in others:
        linear = kernels.make_linear(weight.clone(), added)
        for rows in (1, 5, 300):
            padded = torch.randn(kernels.padded(rows), 64, generator=made).to(dtype)
            assert close(linear(padded), reference.make_linear(weight, added)(padded))


def test_silu_of_very_negative_values_is_zero() -> None:
    for kernels in pairs(shape_of()):
        out = kernels.gate("silu")(torch.tensor([[-200.0, 200.0, 1.0, 1.0]]))
        assert torch.equal(out, torch.tensor([[0.0, 200.0]]))


def test_copied_and_cleared_blocks() -> None:
    for kernels in pairs(shape_of()):
        cache = torch.randn(3, 2, 10, 2, 4, 16)
        before = cache.clone()
        kernels.copy_blocks(cache, ((1, 5), (2, 7)))
        kernels.clear_blocks(cache, torch.tensor([9]))
        expected = before.clone()
        expected[:, :, 5], expected[:, :, 7], expected[:, :, 9] = (
            before[:, :, 1],
            before[:, :, 2],
            0,
        )
        assert torch.equal(cache, expected)


def test_an_unknown_device_is_refused_by_name() -> None:
    with pytest.raises(NotSupported, match="tpu"):
        kernels_for("tpu", shape_of(), batch_invariant=False)


@pytest.mark.parametrize("name", ["sigmoid", "softplus", "silu", "gelu", "gelu_tanh", "relu2"])
def test_a_number_has_the_same_bits_at_any_place_of_a_tensor(name: str) -> None:
    """What fills no vector at the end of a tensor is rounded as all else is, and far numbers are
    those of torch's own functions."""
    made = torch.Generator().manual_seed(0)
    far = torch.tensor([-200.0, -90.0, -20.5, -1e-6, 0.0, 1e-6, 19.99, 20.5, 90.0, 200.0])
    x = torch.cat([torch.randn(4096, generator=made) * 4, far])
    own = {"sigmoid": (sigmoid, torch.sigmoid), "softplus": (softplus, F.softplus)}
    made_of, expected = own.get(name, (lambda x: activated(x.clone(), name), None))
    whole = made_of(x)
    for first in (0, 1, 5, 16):
        for count in range(1, 80):
            assert torch.equal(made_of(x[first : first + count]), whole[first : first + count])
    if expected is not None:
        torch.testing.assert_close(whole, expected(x), rtol=3e-7, atol=1e-38)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_numbers_of_16_bits_are_rounded_once(dtype: torch.dtype) -> None:
    x = (torch.randn(500, generator=torch.Generator().manual_seed(1)) * 4).to(dtype)
    for made_of in (sigmoid, softplus):
        assert torch.equal(made_of(x), made_of(x.float()).to(dtype))
