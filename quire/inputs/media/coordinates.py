"""Positions of three coordinates (time, height, width), for models that turn heads by them.

Tokens of text have three equal ones. The rows of an image lie on a grid that begins where the text
before it ended; the text behind it goes on after the largest coordinate. Rows of a video that lie
side by side are such a grid, whatever stands between them is text.
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
        gaps = np.flatnonzero(np.diff(span.places) != 1) + 1
        for places in np.split(span.places, gaps):
            start, count = int(places[0]), len(places)
            made[:, first:start] = np.arange(at, at + start - first)
            at += start - first
            _, height, width = span.item.grid or (1, 1, count)
            grid = np.indices((count // (height * width), height, width)).reshape(3, -1)
            grid[0] = grid[0] * span.item.step
            made[:, start : start + count] = grid + at
            at, first = at + int(grid.max()) + 1, start + count
    made[:, first:] = np.arange(at, at + length - first)
    return made, at + length - first - length
