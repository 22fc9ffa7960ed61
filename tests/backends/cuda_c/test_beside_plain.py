"""Products with codes of 4 bits whose plain weight is kept, too: what needs no GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from quire.backends.cuda_c.linear import MOST_ROWS, CodesMatrix, PackedBesidePlain, PackedLinear
from quire.backends.linear import is_kept
from quire.backends.triton.kernels import as_plain, stacked
from quire.errors import NotSupported


def matrix(plain: torch.Tensor | None) -> CodesMatrix:
    codes: Any = None  # of few rows, on a GPU
    return CodesMatrix(codes, plain, codes)


def test_many_rows_multiply_with_the_plain_weight_as_other_kernels_do() -> None:
    plain, bias = torch.randn(24, 16), torch.randn(24)
    product = matrix(plain).linear(bias)
    assert isinstance(product, PackedBesidePlain)
    x = torch.randn(MOST_ROWS + 1, 16)
    assert torch.equal(product(x), F.linear(x, plain, bias))
    read = as_plain(product)
    assert read is not None and read.weight is plain and read.bias is bias


def test_it_stays_quantised() -> None:
    product = matrix(torch.randn(24, 16)).linear(None)
    assert is_kept(product)
    with pytest.raises(NotSupported, match="exchanged"):
        product.write_rows(0, torch.ones(1, 16))
    with pytest.raises(NotSupported, match="exchanged"):
        product.read_rows(0, 1)
    assert stacked([product, product]) is None  # a copy would be a third one


def test_without_a_plain_weight_there_is_none_to_read() -> None:
    product = matrix(None).linear(None)
    assert isinstance(product, PackedLinear)
    assert as_plain(product) is None
