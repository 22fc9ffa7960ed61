"""Token ids of many prompts at once: lists of ints, as nearly all are, become arrays together.

Looking at the numbers of one prompt takes numpy as long as reading a few hundred ids. So short
lists are written into one array, and checked there together. Where anything is wrong or unusual in
them, each is left to checked_ids, which says what.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

from quire.inputs.parse import result_or_error
from quire.inputs.token_ids import packed_ids
from quire.request import Ints

# Tokens of an array that lists share. It stays in memory as long as a part of it.
SHARED = 8192


def packed_prompts(prompts: Sequence[Any], vocab_size: int) -> list[Ints | None]:
    """The token ids of prompts that are lists of ids of the vocabulary, alone or in a dict; None
    for all others."""
    lists = [_list_in(prompt) for prompt in prompts]
    found: list[Ints | None] = [None] * len(lists)
    for some in _portions(lists):
        given = [lists[i] for i in some]
        ids = result_or_error(packed_ids, given, vocab_size)
        if ids is not None and not isinstance(ids, Exception):
            ends = accumulate(map(len, given), initial=0)
            for i, (first, last) in zip(some, pairwise(ends), strict=True):
                found[i] = ids[first:last]
    return found


def _list_in(prompt: Any) -> Any:
    """The list of a prompt; empty if it is anything else."""
    ids = prompt.get("prompt_token_ids") if type(prompt) is dict else prompt
    return ids if type(ids) is list or type(ids) is tuple else ()


def _portions(lists: Sequence[Sequence[Any]]) -> Iterator[list[int]]:
    """The indices of lists that share an array; empty lists are left out."""
    some: list[int] = []
    num_tokens = 0
    for i, count in enumerate(map(len, lists)):
        if some and num_tokens + count > SHARED:
            yield some
            some, num_tokens = [], 0
        if count:
            some.append(i)
            num_tokens += count
    if some:
        yield some
