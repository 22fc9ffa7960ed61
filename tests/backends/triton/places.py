"""Where checks run: tiny shapes wherever we are, real ones on a GPU."""

from __future__ import annotations

import pytest
import torch

from tests.backends.triton.checks import Place

GPU_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
# Where kernels run: the GPU, or the interpreter where there is none.
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def small_places() -> list[object]:
    dtypes = GPU_DTYPES if DEVICE.type == "cuda" else (torch.float16, torch.float32)
    return [pytest.param(Place(DEVICE, dtype), id=str(dtype)[6:]) for dtype in dtypes]


REAL_HEADS = ((16, 8, 128), (32, 8, 64), (8, 8, 96), (16, 1, 256))  # heads, KV heads, width


def real_cases() -> list[object]:
    """Types and heads of real models: a test each, since compiling takes most of their time. All
    heads in bfloat16, and of the wider types those that take the most memory."""
    cases = [(torch.bfloat16, heads) for heads in REAL_HEADS]
    cases += [(torch.float16, REAL_HEADS[0]), (torch.float32, REAL_HEADS[0])]
    cases += [(torch.float32, REAL_HEADS[-1])]
    return [pytest.param(*case, id=f"{str(case[0])[6:]}-{case[1][2]}") for case in cases]
