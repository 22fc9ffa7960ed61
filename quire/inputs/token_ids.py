"""Checks token ids of a prompt, which may be a list, an array or a tensor."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from quire.errors import InvalidPrompt
from quire.request import Ints


def as_numpy(given: Any) -> Any:
    """A tensor as an array; whatever else it is, as it is."""
    if isinstance(given, np.ndarray) or not hasattr(given, "__array__"):
        return given
    return np.asarray(given.cpu() if callable(getattr(given, "cpu", None)) else given)


def checked_ids(given: Any, vocab_size: int) -> Ints:
    """Token ids as int32, each one of the vocabulary."""
    packed = packed_ids([given], vocab_size) if isinstance(given, list | tuple) and given else None
    if packed is not None:
        return packed
    if isinstance(given, Mapping) and "input_ids" in given:
        given = given["input_ids"]  # what apply_chat_template of Transformers 5 returns
    given = as_numpy(given)
    ids: np.ndarray[Any, np.dtype[Any]]
    ids = given if isinstance(given, np.ndarray) else _as_array(given)
    if ids.ndim != 1 or (ids.dtype.kind not in "iu" and ids.size):
        raise InvalidPrompt(
            f"token ids are an array of {ids.dtype} with {ids.ndim} dimensions; they should be "
            "whole numbers in one dimension",
            parameter="prompt_token_ids",
        )
    if not ids.size:
        raise InvalidPrompt(
            "the prompt has no tokens; give it at least one", parameter="prompt_token_ids"
        )
    if ids.max() >= vocab_size or ids.min() < 0:
        bad = int(np.flatnonzero((ids < 0) | (ids >= vocab_size))[0])
        raise _bad_id(bad, int(ids[bad]), f"not in 0 .. {vocab_size - 1}")
    return np.array(ids, np.int32)


@lru_cache(4096)
def _packing(count: int) -> struct.Struct:
    return struct.Struct(f"{count}i")


def packed_ids(lists: Sequence[list[Any] | tuple[Any, ...]], vocab_size: int) -> Ints | None:
    """A copy of these lists, one behind the other, as int32; None if something in them is no int,
    or not of the vocabulary.

    Takes a third of the time of looking at each number first, and there may be millions.
    """
    ids, first = np.empty(sum(map(len, lists)), np.int32), 0
    into = ids.data
    try:
        for given in lists:
            _packing(len(given)).pack_into(into, first, *given)
            first += 4 * len(given)
    except struct.error:
        return None
    # Read as unsigned, what is below 0 is far above. True and False pass for 1 and 0, and so do
    # those of numpy below 2: where all ids are higher, one look is enough.
    unsigned = ids.view(np.uint32)
    if (unsigned - 2).max() < vocab_size - 2:
        return ids
    is_known = unsigned.max() < vocab_size
    return ids if is_known and all(map(_has_no_truth, lists)) else None


def _has_no_truth(given: list[Any] | tuple[Any, ...]) -> bool:
    """Whether no number is a bool."""
    return {bool, np.bool_}.isdisjoint(map(type, given))


def _as_array(given: Any) -> np.ndarray[Any, np.dtype[Any]]:
    if not isinstance(given, Sequence) or isinstance(given, str | bytes | bytearray):
        raise InvalidPrompt(
            f"token ids are a list of ints, not a {type(given).__name__}",
            parameter="prompt_token_ids",
        )
    if not all(
        issubclass(kind, int | np.integer) and kind is not bool for kind in {*map(type, given)}
    ):
        at, value = next(
            (at, value)
            for at, value in enumerate(given)
            if isinstance(value, bool) or not isinstance(value, int | np.integer)
        )
        shown = repr(value) if isinstance(value, bool | float) else "a " + type(value).__name__
        rule = "token ids are ints, and a list that begins with a number is one prompt of token ids"
        if isinstance(value, str):
            rule = "a list in the list of prompts is token ids; texts stand in one flat list"
        raise InvalidPrompt(
            f"token {at} is {shown}; {rule}",
            parameter="prompt_token_ids",
            value=value,
        )
    try:
        return np.array(given, np.int64)
    except OverflowError:
        at = next(at for at, value in enumerate(given) if not -(2**63) <= int(value) < 2**63)
        raise _bad_id(at, int(given[at]), "far too large") from None


def _bad_id(at: int, value: int, what: str) -> InvalidPrompt:
    return InvalidPrompt(
        f"token {at} is {value}, which is {what}; ids come from the model's own tokenizer",
        parameter="prompt_token_ids",
        value=value,
    )
