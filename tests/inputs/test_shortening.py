"""The tokens that stay of a text that is cut, without encoding all of it."""

from __future__ import annotations

import random

import numpy as np
import pytest

from quire.errors import PromptTooLong
from quire.inputs.known_tokens import check_length
from quire.inputs.quoting import ChatText
from quire.inputs.shortening import kept_part
from quire.inputs.tokenizer import Tokenizer
from quire.request import Ints

LENGTH, KEEP = 300_000, 100
PIECES = (
    ["the", " sea", "  ", "\n", "\n\n", "12345", "é", "<|im_end|>", "don't", "x=1;", "\t"],
    ["海", "は", "広い", "。", "，", "三", "\n"],
    [*"0123456789"],
    [*"ACGT", "\n"],
)


def text_of(pieces: list[str], seed: int) -> str:
    rng, count = random.Random(seed), LENGTH
    return "".join(rng.choices(pieces, k=count))[:count]


@pytest.mark.parametrize("pieces", PIECES, ids=["words", "japanese", "digits", "letters"])
def test_the_tokens_that_stay_are_those_of_the_whole_text(
    tokenizer: Tokenizer, pieces: list[str]
) -> None:
    text = text_of(pieces, 1)

    def encode(part: str) -> Ints:
        return tokenizer.encode(part, False)

    whole = encode(text)
    for of_start in (False, True):
        try:
            part = kept_part(text, KEEP, encode, of_start=of_start)
        except PromptTooLong:
            assert pieces == PIECES[2]  # where digits are read in groups from the left
            continue
        ids = encode(text[part])
        assert len(text[part]) < 20 * KEEP + 4096
        kept, expected = (ids[:KEEP], whole[:KEEP]) if of_start else (ids[-KEEP:], whole[-KEEP:])
        assert np.array_equal(kept, expected)


def test_a_run_without_end_is_read_whole_where_it_is_short_and_else_refused() -> None:
    asked: list[int] = []

    def in_threes(part: str) -> Ints:
        """As some tokenizers read digits: in groups, counted from the left."""
        asked.append(len(part))
        return np.array([int(part[at : at + 3]) for at in range(0, len(part), 3)], np.int32)

    digits = text_of(PIECES[2], 2)
    assert kept_part(digits[:200_000], KEEP, in_threes) == slice(0, 200_000) and not asked
    with pytest.raises(PromptTooLong, match="300,000 characters, and those at its end are a run"):
        kept_part(digits, KEEP, in_threes)
    assert kept_part(digits, KEEP, in_threes, of_start=True).stop < 20 * KEEP
    blanks = " " * 300_000
    with pytest.raises(PromptTooLong, match="a run of blanks"):
        kept_part(blanks, KEEP, lambda part: np.zeros(len(part) // 4096, np.int32))
    assert max(asked) < 300_000  # all of it was never encoded


def test_a_part_of_a_chat_keeps_what_is_text_there() -> None:
    chat = ChatText("0<|a|>1<|b|>", frozenset({1, 7}))
    assert chat.since(6) == ChatText("1<|b|>", frozenset({1}))


def test_a_model_without_room_for_an_answer_is_not_told_to_truncate_to_nothing() -> None:
    with pytest.raises(PromptTooLong, match="Set max_model_len to at least 2"):
        check_length(3, 0, max_model_len=1, pool_tokens=48)
