"""How our functions become Triton kernels.

A variant is compiled per dtype and per constexpr, and Triton makes further ones for integers
that are 1 or divisible by 16; the integers named here are left out of that, so that no batch
size is ever compiled for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

Code = Callable[..., Any]

TYPES = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}


def kernel(*varying: str) -> Callable[[Code], Any]:
    """A kernel; `varying` names its integer arguments that change from call to call."""

    def compile_later(code: Code) -> Any:
        return triton.jit(code, do_not_specialize=list(varying))

    return compile_later


def part(code: Code) -> Any:
    """A function that kernels call."""
    return triton.jit(code)


def power_of_two(size: int) -> int:
    """The first one at or above the size: 80 -> 128."""
    return 1 << (size - 1).bit_length()


def precision(dtype: torch.dtype) -> str:
    """How tl.dot multiplies: float32 as float32, not rounded to the 10 bits of tf32."""
    return "ieee" if dtype == torch.float32 else "tf32"


def rows_of(x: Tensor) -> Tensor:
    """x [..., n] as contiguous [any, n]."""
    return x.reshape(-1, x.shape[-1]).contiguous()
