"""Lists of many prompts become arrays together, and mean what each means by itself."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from quire.errors import InvalidPrompt
from quire.inputs.packing import SHARED, packed_prompts
from quire.inputs.token_ids import checked_ids

VOCAB = 1000


def test_lists_alone_and_in_dicts_become_the_arrays_that_each_becomes_by_itself() -> None:
    rng = random.Random(0)
    lists = [[rng.randrange(VOCAB) for _ in range(rng.randint(1, 900))] for _ in range(60)]
    lists.append([7] * (SHARED + 1))
    prompts = [each if i % 2 else {"prompt_token_ids": tuple(each)} for i, each in enumerate(lists)]
    for found, given in zip(packed_prompts(prompts, VOCAB), lists, strict=True):
        assert found is not None and found.dtype == np.int32
        assert found.tolist() == given == checked_ids(given, VOCAB).tolist()


class Hostile:
    def __index__(self) -> int:
        raise RuntimeError("no number")


@pytest.mark.parametrize(
    "bad",
    [[1, True], [np.bool_(False)], [-1], [VOCAB], [2**31], [2**70], [1.5], ["a"], [Hostile()]],
)
def test_what_is_no_list_of_ids_is_left_to_the_check_of_one_prompt(bad: list[Any]) -> None:
    """And so are its neighbours, whose ids are good."""
    assert packed_prompts([[5, 6], bad, [0, 1]], VOCAB) == [None, None, None]
    with pytest.raises((InvalidPrompt, RuntimeError)):
        checked_ids(bad, VOCAB)
    assert checked_ids([0, 1], VOCAB).tolist() == [0, 1]


def test_prompts_of_other_kinds_are_left_out() -> None:
    others: list[Any] = ["text", [], {}, {"prompt": "text"}, None, np.array([3]), {1: 2}]
    found = packed_prompts([*others, [0, 1]], VOCAB)
    assert found[:-1] == [None] * len(others)
    assert found[-1] is not None and found[-1].tolist() == [0, 1]


def test_an_array_keeps_little_more_than_its_own_ids_in_memory() -> None:
    found = packed_prompts([[5] * 100] * 1000, VOCAB)
    for ids in found:
        assert ids is not None and ids.base is not None and ids.base.nbytes <= 4 * SHARED
