"""Positions of three coordinates (time, height, width), for models that turn heads by them.

Tokens of text have three equal ones. The rows of an image lie on a grid that begins where the text
before it ended; the text behind it goes on after the largest coordinate.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from quire.request import Ints, Span


def coordinates_of(length: int, spans: Sequence[Span]) -> tuple[Ints, int]:
    """[3, length] of a prompt with these spans, and what is added to a later position to go on.

    An image of 1 x 2 x 2 rows at position 1 of 7: 0 1 1 1 1 3 4 / 0 1 1 2 2 3 4 / 0 1 2 1 2 3 4,
    and -2.
    """
    made = np.empty((3, length), np.int32)
    at = first = 0
    for span in spans:
        made[:, first : span.start] = np.arange(at, at + span.start - first)
        at += span.start - first
        grid = span.item.grid or (1, 1, len(span.places))
        made[:, span.start : span.end] = np.indices(grid).reshape(3, -1) + at
        at, first = at + max(grid), span.end
    made[:, first:] = np.arange(at, at + length - first)
    return made, at + length - first - length
