"""Products of few rows in any model, on a GPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from quire.backends.cuda_c import few_rows_linear, plain
from quire.backends.cuda_c.few_rows_linear import FewRowsLinear, wait_until_loaded
from quire.backends.cuda_c.launch import CudaKernel
from quire.backends.cuda_c.nvrtc import NoCudaC
from tests.backends.cuda_c.checks import assert_near, random


def test_weights_on_a_cpu_are_left_alone() -> None:
    assert FewRowsLinear.of(torch.ones(64, 64, dtype=torch.bfloat16), None) is None


@pytest.mark.gpu
class TestOnHopper:
    @pytest.fixture(autouse=True)
    def _hopper(self) -> None:
        if torch.cuda.get_device_capability() != (9, 0):
            pytest.skip("a kernel for Hopper")

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_any_number_of_rows_makes_what_torch_makes(
        self, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        called: list[int] = []

        def counted(weight: Tensor, x: Tensor, *given: object, **more: object) -> Tensor:
            called.append(len(x))
            return plain.multiply_plain(weight, x, *given, **more)  # type: ignore[arg-type]

        monkeypatch.setattr(few_rows_linear, "multiply_plain", counted)
        torch.manual_seed(0)
        for shape in ((520, 576), (2304, 2048), (128, 4096)):
            weight, bias = random(*shape, dtype=dtype), random(shape[0], dtype=dtype)
            product = FewRowsLinear.of(weight, bias)
            assert product is not None
            wait_until_loaded()
            for rows in (1, 7, 64, 65, 300):
                x = random(rows, 2 * shape[1], dtype=dtype)[:, ::2]  # not in one piece
                assert_near(product(x), F.linear(x.float(), weight.float(), bias.float()))
            assert product(x[:0]).shape == (0, shape[0])
            product.write_rows(3, torch.zeros(2, shape[1]))
            assert torch.equal(product(x[:5])[:, 3:5], bias[3:5].expand(5, 2))
        assert set(called) == {1, 5, 7, 64}

    def test_weights_that_the_library_multiplies_as_fast_are_left_to_it(self) -> None:
        assert FewRowsLinear.of(random(28672, 512), None) is None
        assert FewRowsLinear.of(random(512, 512).float(), None) is None
        assert FewRowsLinear.of(random(512, 1024)[:, ::2], None) is None
        assert FewRowsLinear.of(random(516, 512), None) is None  # no whole eights

    def test_without_a_compiler_the_library_multiplies(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def missing(*_: object) -> CudaKernel:
            raise NoCudaC("no compiler in this test")

        monkeypatch.setattr(few_rows_linear, "kernel_of", missing)
        monkeypatch.setattr(few_rows_linear, "_known", {})
        weight, x = random(520, 576), random(5, 576)
        product = FewRowsLinear.of(weight, None)
        assert product is not None
        assert torch.equal(product(x), F.linear(x, weight))
