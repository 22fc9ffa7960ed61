"""The work list of shared prefixes: what its host side decides."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from quire.kernels.ops import HeadShape

SHAPE = HeadShape(4, 2, 16, 8, torch.float32)
BLOCKS = np.arange(100, 106, dtype=np.int32)
# rows 0..3 begin with two blocks, 1 and 2 of them with four
GROUPS = [
    (BLOCKS[:4], np.asarray([1, 2], np.int32)),
    (BLOCKS[:2], np.asarray([0, 1, 2, 3], np.int32)),
]


@pytest.mark.parametrize(
    ("room", "served", "covered"),
    [
        ({}, 6, [16, 32, 32, 16, 0]),
        ({"blocks": 3}, 4, [16, 16, 16, 16, 0]),  # the second level does not fit
        ({"members": 3}, 0, [0, 0, 0, 0, 0]),  # without the first level there is no second
    ],
)
def test_what_does_not_fit_is_left_to_the_rows(
    room: dict[str, int], served: int, covered: list[int]
) -> None:
    from quire.kernels.triton.prefix import PrefixSize, PrefixWork

    size = replace(PrefixSize.of(SHAPE, 5), **room)
    work = PrefixWork(SHAPE, 5, torch.device("cpu"), size)
    assert work.fill(GROUPS) == served
    assert work.covered.tolist() == covered


def test_a_new_list_forgets_the_old_one() -> None:
    from quire.kernels.triton.prefix import PrefixSize, PrefixWork

    work = PrefixWork(SHAPE, 5, torch.device("cpu"), PrefixSize.of(SHAPE, 5))
    work.fill(GROUPS)
    assert work.fill([]) == 0
    assert work.covered.tolist() == [0] * 5
    assert not work.spans.any()
