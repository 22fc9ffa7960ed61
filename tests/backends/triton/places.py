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
