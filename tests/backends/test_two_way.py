"""Tokens that see each other, beside the kernels of every set that a CPU has."""

from __future__ import annotations

import pytest
import torch

from quire.backends.choose import kernels_for, torch_kernels
from quire.backends.ops import HeadShape, Kernels
from quire.backends.two_way import TwoWayAttention
from quire.errors import EngineError
from tests.backends.reference import ReferenceKernels
from tests.backends.test_ops import TOLERANCE, close
from tests.backends.two_way_checks import NUM_BLOCKS, SPANS, attended, inputs_of, meant


def sets(shape: HeadShape) -> dict[str, Kernels]:
    return {
        "reference": ReferenceKernels(shape),
        "torch": torch_kernels(shape, batch_invariant=False),
        "invariant": torch_kernels(shape, batch_invariant=True),
        "native": kernels_for("cpu", shape, batch_invariant=False),
    }


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("window", [None, 1, 5, 64])
def test_tokens_of_a_span_see_each_other(dtype: torch.dtype, window: int | None) -> None:
    shape = HeadShape(4, 2, 16, 4, dtype)
    expected = meant(shape, window)
    for name, kernels in sets(shape).items():
        size = (2, NUM_BLOCKS, shape.num_kv_heads, shape.block_size, shape.head_dim)
        cache = torch.zeros(size, dtype=dtype)
        assert close(attended(kernels, shape, cache, window, True)[0], expected), name


def test_what_is_not_computed_is_refused() -> None:
    shape = HeadShape(4, 2, 16, 4, torch.float32, softcap=30.0)
    inputs = inputs_of(4, "cpu", whole=False)
    step = ReferenceKernels(shape).plan_attention(inputs, None)
    with pytest.raises(EngineError, match="bounded"):
        TwoWayAttention(step, shape, inputs, None, SPANS)
