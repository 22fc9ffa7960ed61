"""What encoders compute between products, in C: as torch does, on each instruction set."""

from __future__ import annotations

import ctypes

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from quire.backends.cpu.native.rows import KINDS, NativeRows
from quire.models.encoder_ops import activation, activation_of_rows, layer_norm


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_activations_are_those_of_torch(library: ctypes.CDLL, name: str, gated: bool) -> None:
    plain = activation_of_rows(name, gated)
    op = NativeRows(library).activation(name, gated=gated, plain=plain)
    for rows, width in ((1, 2), (3, 34), (700, 192), (1, 20_001 * 2)):
        x = torch.randn(rows, width) * 4
        exact = plain(x.double())
        assert torch.allclose(op(x.clone()).double(), exact, atol=1e-6, rtol=2e-6)


def test_gelu_is_exact_to_the_last_digits_everywhere(library: ctypes.CDLL) -> None:
    plain = activation("gelu")
    x = torch.linspace(-12, 12, 240_001)[None]
    exact = plain(x.double())
    op = NativeRows(library).activation("gelu", gated=False, plain=plain)
    off = (op(x.clone()).double() - exact).abs()
    assert (off <= 1.5e-6 * exact.abs()).logical_or(x < -6).all()
    assert off.max() < 3e-7  # torch: 1.2e-6
    zeros = torch.tensor([[0.0, -0.0, -40.0, -1e30, 1e30]])
    assert op(zeros).tolist() == [[0, 0, 0, 0, torch.tensor(1e30).item()]]


def test_what_is_not_a_number_stays_none(library: ctypes.CDLL) -> None:
    for name in KINDS:
        op = NativeRows(library).activation(name, gated=False, plain=activation(name))
        assert op(torch.tensor([[1.0, torch.nan, -1.0]])).isnan().tolist() == [[False, True, False]]


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("is_sum", [False, True])
@pytest.mark.parametrize("width", [1, 7, 16, 48, 384, 1000])
def test_norms_are_those_of_torch(
    library: ctypes.CDLL, width: int, is_sum: bool, has_bias: bool
) -> None:
    norm = NativeRows(library).layer_norm
    weight, bias = torch.randn(width), torch.randn(width) if has_bias else None
    for rows in (1, 5, 300):
        x, added = torch.randn(rows, width) + 3, torch.randn(rows, width) if is_sum else None
        whole = (x if added is None else x + added).double()
        exact = F.layer_norm(
            whole, (width,), weight.double(), None if bias is None else bias.double(), 1e-12
        )
        before = x.clone()
        found = norm(x, added, weight, bias, 1e-12)
        if width > 1:  # one number less itself is zero, or what rounding left of it
            assert torch.allclose(found.double(), exact, atol=2e-5, rtol=1e-5)
        assert torch.equal(x, found if is_sum else before)


def test_a_row_has_the_same_bits_in_every_batch(library: ctypes.CDLL) -> None:
    rows, weight, x = NativeRows(library), torch.randn(100), torch.randn(900, 100)
    gelu = rows.activation("gelu", gated=False, plain=activation("gelu"))

    def computed(some: Tensor) -> Tensor:
        return gelu(rows.layer_norm(some.clone(), some, weight, None, 1e-5))

    whole = computed(x)
    for first, last in ((0, 1), (5, 18), (899, 900), (300, 811)):
        assert torch.equal(computed(x[first:last]), whole[first:last])


def test_other_types_are_left_to_torch(library: ctypes.CDLL) -> None:
    rows, weight = NativeRows(library), torch.randn(24)
    x, added = torch.randn(6, 24), torch.randn(6, 24).bfloat16()
    expected = layer_norm(x.clone(), added, weight, None, 1e-5)
    assert torch.equal(rows.layer_norm(x, added, weight, None, 1e-5), expected)
    for gated in (False, True):
        plain = activation_of_rows("gelu", gated)
        op = rows.activation("gelu", gated=gated, plain=plain)
        assert torch.equal(op(added.clone()), plain(added))
        turned = torch.randn(24, 6).T
        assert torch.allclose(op(turned.clone(memory_format=torch.preserve_format)), plain(turned))
    assert rows.activation("tanh", gated=False, plain=torch.tanh) is torch.tanh
