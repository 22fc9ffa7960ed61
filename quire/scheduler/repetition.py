"""Answers that only repeat themselves: a few tokens over and over, until max_tokens."""

from __future__ import annotations

import numpy as np

from quire.params.structured import RepetitionDetectionParams
from quire.request import Ints


def is_repeating(output_ids: Ints, wanted: RepetitionDetectionParams) -> bool:
    """Whether the last tokens are the same few, as often as `wanted` says: [7, 1, 2, 1, 2, 1, 2]
    ends with 3 times [1, 2]."""
    for size in range(max(1, wanted.min_pattern_size), wanted.max_pattern_size + 1):
        span = size * wanted.min_count
        if span > len(output_ids):
            return False
        tail = output_ids[-span:]
        if np.array_equal(tail[:-size], tail[size:]):
            return True
    return False
