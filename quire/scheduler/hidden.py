"""Which hidden states of a prompt its slices ask for, and when they mean nothing.

A request for hidden states computes its prompt and draws nothing. Every chunk of it asks for what
it holds of the answer, and the last chunk always asks, so that its result ends the row. Its first
tokens may be left out of the answer, but never all of them.
"""

from __future__ import annotations

import numpy as np

from quire.errors import InvalidLogits
from quire.request import HiddenKind, Request
from quire.step import Floats


def hidden_of(request: Request, start: int, end: int) -> tuple[HiddenKind | None, int]:
    """Which hidden states tokens start .. end of a prompt return, None if they return none; and the
    number of these tokens that are left out before them."""
    kind, left_out = request.hidden, request.hidden_from
    if end <= left_out:
        return None, 0
    if kind == "first" and start > left_out:
        kind = "last"  # an earlier chunk had it; this one only ends the row
    if kind == "last" and end < request.num_prompt:
        return None, 0
    return kind, max(left_out - start, 0)


def not_finite(states: Floats) -> InvalidLogits | None:
    """The error of hidden states that are not finite, or None."""
    if np.isfinite(states).all():
        return None
    return InvalidLogits(
        "the model gave NaN or infinite hidden states for this text; the other rows went on. Try "
        "dtype='float32', or check the weights."
    )


def joined(kind: HiddenKind, parts: list[Floats]) -> Floats:
    """The states of a whole prompt from those of its chunks: [tokens that count, H] of all, [1, H]
    else."""
    if kind == "all":
        return np.concatenate(parts)
    if kind == "sum":
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total
    return parts[0] if kind == "first" else parts[-1]
