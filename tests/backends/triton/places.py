"""Where checks run: tiny shapes wherever we are, real ones on a GPU."""

from __future__ import annotations

import pytest
import torch

from tests.backends.triton.checks import Place

GPU_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def small_places() -> list[object]:
    """The interpreter, or the GPU where there is one."""
    dtypes: tuple[torch.dtype, ...] = (torch.float16, torch.float32)
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device, dtypes = torch.device("cuda"), GPU_DTYPES
    return [pytest.param(Place(device, dtype), id=str(dtype)[6:]) for dtype in dtypes]
