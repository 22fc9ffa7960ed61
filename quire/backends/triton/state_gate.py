"""What was read from states, gated and normed in one launch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from quire.backends.triton.elementwise import activated, normed, warps
from quire.backends.triton.jit import kernel, power_of_two

if TYPE_CHECKING:
    from torch import Tensor

    from quire.backends.ops import ReadGate

_COLUMNS = 1024  # of a program without a norm


def gate_read(read: Tensor, gate: Tensor, by: ReadGate) -> Tensor:
    count, width = gate.shape
    norm, part = by.norm, width // by.parts
    size = min(part, _COLUMNS) if norm is None else part
    block = power_of_two(size)
    out = gate.new_empty(count, width)
    _gate_read[(count, triton.cdiv(width, size))](
        *(read, gate, gate if norm is None else norm.weight, out, gate.stride(0)),
        *(width, size, 0.0 if norm is None else norm.eps),
        NORMS=norm is not None,
        FIRST=by.norm_first,
        SHARED=norm is not None and len(norm.weight) < width,
        BLOCK=block,
        num_warps=warps(block),
    )
    return out


@kernel()
def _gate_read(
    read: tl.tensor,
    gate: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    stride: tl.tensor,
    width: tl.tensor,
    part: tl.tensor,
    eps: tl.tensor,
    NORMS: tl.constexpr,
    FIRST: tl.constexpr,
    SHARED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One part of a row. SHARED: every part has the same weights."""
    row, at = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    column = tl.program_id(1) * part + at
    inside = (at < part) & (column < width)
    dtype: tl.constexpr = out.dtype.element_ty
    wide = tl.load(read + row * width + column, mask=inside, other=0.0)
    opened = activated(
        tl.load(gate + row * stride + column, mask=inside, other=0.0).to(tl.float32), "silu"
    )
    if NORMS:
        scale = tl.load(weight + (at if SHARED else column), mask=inside, other=0.0)
        if FIRST:
            made = (normed(wide, scale.to(tl.float32), part, eps, tl.float32) * opened).to(dtype)
        else:
            made = normed(wide * opened, scale, part, eps, dtype)
    else:
        made = (wide * opened).to(dtype)
    tl.store(out + row * width + column, made, mask=inside)
