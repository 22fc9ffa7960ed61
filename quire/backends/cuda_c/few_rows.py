"""What products of few rows do besides multiplying (see triton/small_batch.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, float32

Way = Literal["plain", "normed", "gated", "adds"]


@dataclass(frozen=True, slots=True)
class NormedRows:
    """The norm of sums: partial sums of squares of the rows, float32 [rows, parts]."""

    eps: float
    squares: Tensor


@dataclass(frozen=True, slots=True)
class AddedRows:
    """The addition of sums: the stream; where the stream times a norm's weight is written; and
    partial sums of its squares."""

    stream: Tensor
    scaled: Tensor
    norm: Tensor
    squares: Tensor

    @staticmethod
    def to(stream: Tensor, scaled: Tensor, norm: Tensor, num_parts: int) -> AddedRows:
        """The product writes sums of squares of `num_parts` parts of each row."""
        squares = stream.new_empty(len(stream), num_parts, dtype=float32)
        return AddedRows(stream, scaled, norm, squares)
