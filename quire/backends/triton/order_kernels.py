"""Floats as integers of the same order, for binary search.

SHIFT low bits that a dtype never uses are left out: 16 for bfloat16, 13 for float16.
"""

from __future__ import annotations

from typing import Any

import triton.language as tl

from quire.backends.triton.jit import part


@part
def order_of(x: tl.tensor, SHIFT: tl.constexpr) -> Any:
    """float32 -> int32 of the same order; -0 and 0 are equal."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)) >> SHIFT


@part
def value_at(order: tl.tensor, SHIFT: tl.constexpr) -> Any:
    """The float32 at this place in the order."""
    bits = (order << SHIFT) | tl.where(order < 0, (1 << SHIFT) - 1, 0)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
