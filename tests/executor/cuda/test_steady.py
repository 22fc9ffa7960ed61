"""What batch_invariant=True is refused for on a GPU, found out without one."""

from __future__ import annotations

import pytest
import torch

from quire.backends.plain import PlainLinear
from quire.backends.triton.invariant import SteadyLinear
from quire.errors import NotSupported
from quire.executor.cuda.steady import check_steady
from tests.executor.cuda.test_runner import SPEC
from tests.specs import small_config


def test_a_cache_in_fp8_is_refused_by_name() -> None:
    check_steady(small_config(batch_invariant=True), SPEC)
    with pytest.raises(NotSupported, match="fp8"):
        check_steady(small_config(batch_invariant=True, kv_cache_dtype="fp8"), SPEC)


@pytest.mark.parametrize("num_rows", [1, 5, 8, 9, 16, 21, 40])
def test_rows_are_padded_and_cut_into_numbers_that_agree(num_rows: int) -> None:

    weight = torch.randn(3, 4)
    linear = SteadyLinear(PlainLinear(weight, None), (8, 16))
    x = torch.randn(num_rows, 4)
    made = linear(x)
    assert made.shape == (num_rows, 3)
    torch.testing.assert_close(made, x @ weight.T)
