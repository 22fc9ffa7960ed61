"""Where pieces begin, and their merged result, on the device; see steady.py."""

from __future__ import annotations

from typing import Any

import triton.language as tl

from quire.backends import pieces
from quire.backends.triton.jit import part
from quire.backends.triton.softmax import with_sinks

SHORT, MIDDLE, LARGE = (tl.constexpr(x) for x in (pieces.SHORT, pieces.MIDDLE, pieces.LARGE))
FIRST_END, SECOND_END = tl.constexpr(pieces.FIRST_END), tl.constexpr(pieces.SECOND_END)
_SHORTS = tl.constexpr(pieces.FIRST_END // pieces.SHORT)
_MIDDLES = tl.constexpr((pieces.SECOND_END - pieces.FIRST_END) // pieces.MIDDLE)


@part
def num_pieces(length: tl.tensor) -> Any:
    """The number of pieces of so many tokens."""
    shorts = tl.cdiv(tl.minimum(length, FIRST_END), SHORT)
    rest = tl.maximum(length - FIRST_END, 0)
    middles = tl.cdiv(tl.minimum(rest, SECOND_END - FIRST_END), MIDDLE)
    return shorts + middles + tl.cdiv(tl.maximum(length - SECOND_END, 0), LARGE)


@part
def piece_begin(number: tl.tensor) -> Any:
    """Where a piece begins: 0 512 .. 4096 6144 .. 32768 40960 .."""
    middles = tl.minimum(tl.maximum(number - _SHORTS, 0), _MIDDLES)
    larges = tl.maximum(number - _SHORTS - _MIDDLES, 0)
    return tl.minimum(number, _SHORTS) * SHORT + middles * MIDDLE + larges * LARGE


@part
def mean_of(
    top: tl.tensor, weight: tl.tensor, total: tl.tensor, sinks: tl.tensor, SINKS: tl.constexpr
) -> Any:
    """The merged result of pieces, with a sink for each query if there are SINKS."""
    seen = weight > 0.0
    some = tl.where(seen, weight, 1.0)
    mean = total / some[:, None]
    if SINKS:
        log_sum = tl.where(seen, top + tl.log2(some), float("-inf"))
        mean, _ = with_sinks(mean, log_sum, sinks)
    return mean
