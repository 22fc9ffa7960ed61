"""Checks that the GPU has fp8."""

from __future__ import annotations

import torch

from quire.config import EngineConfig
from quire.errors import NotSupported

FP8_CAPABILITY = (8, 9)


def check_fp8(config: EngineConfig) -> None:
    """NotSupported if fp8 is wanted and the GPU does not have it."""
    if config.kv_cache_dtype != "fp8":
        return
    found = torch.cuda.get_device_capability()
    if found < FP8_CAPABILITY:
        raise NotSupported(
            f"kv_cache_dtype='fp8': this GPU has compute capability {found[0]}.{found[1]}, and "
            f"fp8 begins with {FP8_CAPABILITY[0]}.{FP8_CAPABILITY[1]}. Leave it out."
        )
