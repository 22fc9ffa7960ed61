"""Scores that outlive the step they came from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from quire.step import Scores


def in_arrays_of_its_own(parts: Sequence[Scores]) -> tuple[Scores, ...]:
    """The same lines as copies, one part if they have the same number of likeliest tokens: what
    is a part of a larger block keeps all of that block in memory."""
    if len({part.top_ids.shape[1] for part in parts}) != 1:
        return tuple(Scores(*(array.copy() for array in part.arrays())) for part in parts)
    return (Scores(*(np.concatenate(a) for a in zip(*(p.arrays() for p in parts), strict=True))),)
