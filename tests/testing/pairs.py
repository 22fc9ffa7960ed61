"""Products of settings, of which the gate takes as many as let every two values meet."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

import pytest

Pair = tuple[tuple[int, int], tuple[int, int]]  # axis and place, of two values


def in_pairs(*axes: Sequence[Any]) -> list[Any]:
    """Every combination of a value of each axis; those that bring no new pair are for --long."""
    left = list(product(*(range(len(axis)) for axis in axes)))
    met: set[Pair] = set()
    made: list[Any] = []

    def new(places: tuple[int, ...]) -> set[Pair]:
        return {*combinations(enumerate(places), 2)} - met

    while left:
        places = max(left, key=lambda one: len(new(one)))
        left.remove(places)
        values = (axis[at] for axis, at in zip(axes, places, strict=True))
        made.append(pytest.param(*values, marks=() if new(places) else pytest.mark.long))
        met |= new(places)
    return made
