"""How functions become Triton kernels.

A variant is compiled for each dtype and constexpr, and Triton makes further ones for integers that
are 1 or divisible by 16. The integers named here are excluded from that, so that no variant is made
for a batch size. The width of a line is not named: unless it is known to be divisible, lines are
read and written two bytes at a time instead of sixteen.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import triton

if TYPE_CHECKING:  # kernels are also compiled without torch
    import torch
    from torch import Tensor

Code = Callable[..., Any]


def kernel(*varying: str) -> Callable[[Code], Any]:
    """A kernel; `varying` names the integer arguments that change from call to call."""

    def compile_later(code: Code) -> Any:
        return triton.jit(code, do_not_specialize=list(varying))

    return compile_later


def part(code: Code) -> Any:
    """A function that kernels call; it must be defined after those that it calls."""
    made = triton.jit(code)
    # Computed now, because Triton's key of a kernel, with which it is found on disk, depends on
    # whether the keys of its functions were known before: that is, on which thread came first.
    getattr(made, "cache_key", None)  # interpreted functions have none
    return made


@cache
def overlapping() -> bool:
    """Whether a kernel may be launched before the previous one has ended, and wait for it
    (programmatic dependent launch): on GPUs since Hopper."""
    if triton.knobs.runtime.interpret:
        return False
    from triton.runtime import driver

    target: Any = driver.active.get_current_target()
    return bool(target.backend == "cuda" and int(target.arch) >= 90)


def waiting() -> dict[str, bool]:
    """Constants and launch options of a kernel that, if it OVERLAPS, waits (`gdc_wait`) for the one
    ahead before it reads what any kernel has written, and before it writes. So a kernel that waits
    has waited for all kernels before it, not only for the last."""
    return {"OVERLAPS": True, "launch_pdl": True} if overlapping() else {"OVERLAPS": False}


def power_of_two(size: int) -> int:
    """The smallest power of two that is not below the size: 80 -> 128."""
    return 1 << (size - 1).bit_length()


def precision(dtype: torch.dtype) -> str:
    """How tl.dot multiplies: float32 as float32, not rounded to the 10 bits of tf32."""
    return "ieee" if dtype.itemsize == 4 else "tf32"


def rows_of(x: Tensor) -> Tensor:
    """x [..., n] as contiguous [any, n]."""
    return x.reshape(-1, x.shape[-1]).contiguous()
