"""How our functions become Triton kernels.

A variant is compiled per dtype and per constexpr, and Triton makes further ones for integers
that are 1 or divisible by 16; the integers named here are left out of that, so that no batch
size is ever compiled for. The width of a line is not named: unless it is known to be divisible,
lines are read and written two bytes at a time instead of sixteen.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import triton

if TYPE_CHECKING:  # kernels are compiled before torch is there, too
    import torch
    from torch import Tensor

Code = Callable[..., Any]


def kernel(*varying: str) -> Callable[[Code], Any]:
    """A kernel; `varying` names its integer arguments that change from call to call."""

    def compile_later(code: Code) -> Any:
        return triton.jit(code, do_not_specialize=list(varying))

    return compile_later


def part(code: Code) -> Any:
    """A function that kernels call; to be defined after those that it calls itself."""
    made = triton.jit(code)
    # Asked for now, because Triton's key of a kernel, by which it is found on disk, depends on
    # whether the keys of what it calls were known before: on which thread came first.
    getattr(made, "cache_key", None)  # interpreted functions have none
    return made


@cache
def overlapping() -> bool:
    """Whether a kernel may be launched before the one ahead of it has ended, and wait by itself
    (programmatic dependent launch): on GPUs from Hopper on."""
    if triton.knobs.runtime.interpret:
        return False
    from triton.runtime import driver

    target: Any = driver.active.get_current_target()
    return bool(target.backend == "cuda" and int(target.arch) >= 90)


def waiting() -> dict[str, bool]:
    """Constants and launch options of a kernel that, if it OVERLAPS, waits (`gdc_wait`) for the
    one ahead before it reads what any kernel has written, and before it writes. So whoever waits
    has waited for all that came before, not only for the last."""
    return {"OVERLAPS": True, "launch_pdl": True} if overlapping() else {"OVERLAPS": False}


def power_of_two(size: int) -> int:
    """The first one at or above the size: 80 -> 128."""
    return 1 << (size - 1).bit_length()


def precision(dtype: torch.dtype) -> str:
    """How tl.dot multiplies: float32 as float32, not rounded to the 10 bits of tf32."""
    return "ieee" if dtype.itemsize == 4 else "tf32"


def rows_of(x: Tensor) -> Tensor:
    """x [..., n] as contiguous [any, n]."""
    return x.reshape(-1, x.shape[-1]).contiguous()
