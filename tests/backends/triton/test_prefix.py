"""The work list of shared prefixes: what its host side decides."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from quire.backends.ops import HeadShape

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
    from quire.backends.triton.prefix import PrefixSize, PrefixWork

    size = replace(PrefixSize.of(SHAPE, 5), **room)
    work = PrefixWork(SHAPE, 5, torch.device("cpu"), size)
    assert work.fill(GROUPS) == served
    assert work.covered.tolist() == covered


def test_a_new_list_forgets_the_old_one() -> None:
    from quire.backends.triton.prefix import PrefixSize, PrefixWork

    work = PrefixWork(SHAPE, 5, torch.device("cpu"), PrefixSize.of(SHAPE, 5))
    work.fill(GROUPS)
    assert work.fill([]) == 0
    assert work.covered.tolist() == [0] * 5
    assert not work.spans.any()


@pytest.mark.parametrize(("num_groups", "parts"), [(1, 4), (30, 1)])
def test_prefixes_are_cut_where_they_alone_would_not_keep_the_cores_busy(
    num_groups: int, parts: int
) -> None:
    """1,024 tokens for each pair of rows, on 4 cores: stretches of 256 are the shortest."""
    from quire.backends.triton.prefix import PrefixSize, PrefixWork

    size = PrefixSize.of(SHAPE, 2 * num_groups)
    work = PrefixWork(SHAPE, 2 * num_groups, torch.device("cpu"), size, num_cores=4)
    blocks = np.arange(128 * num_groups, dtype=np.int32).reshape(num_groups, 128)
    groups = [(blocks[i], np.asarray([2 * i, 2 * i + 1], np.int32)) for i in range(num_groups)]
    assert work.fill(groups) == 2 * num_groups
    assert work.spans[:, 0, 1].tolist() == [parts] * (2 * num_groups)
