"""Choices are spelled exactly, in the tokens that the tokenizer itself would give."""

from __future__ import annotations

import pytest

from quire.inputs.choices import _longer, spell
from quire.inputs.tokenizer import Tokenizer
from quire.request import Choices
from tests.inputs.makers import strings

WORDS = ["time", " time", "The quick", "price 12", "é", "世界", "a\nb", "  two spaces", "x"]


def spelled(tokenizer: Tokenizer, texts: list[str]) -> Choices:
    found = spell(texts, tokenizer, tokenizer.vocab_size)
    assert isinstance(found, Choices), found
    return found


def text_of(tokenizer: Tokenizer, ids: list[int]) -> bytes:
    pieces = tokenizer.token_bytes.pieces(False, False)
    return b"".join(pieces[i] for i in ids)


def test_tokens_spell_the_choice_and_nothing_else(tokenizer: Tokenizer) -> None:
    made = [text[:30] for text in strings(200, seed=8)]
    # How a tokenizer writes a space or a byte is no text that it could spell.
    texts = list(dict.fromkeys([*WORDS, *(t for t in made if "▁" not in t and "<0x" not in t)]))
    choices = spelled(tokenizer, texts)
    for text, ids in zip(choices.texts, choices.token_ids, strict=True):
        assert text_of(tokenizer, ids.tolist()) == text.encode()


def test_byte_level_tokens_are_those_of_the_text_alone(byte_bpe: Tokenizer) -> None:
    for text, ids in zip(WORDS, spelled(byte_bpe, WORDS).token_ids, strict=True):
        assert ids.tolist() == byte_bpe.encode(text, False).tolist()


def test_a_space_that_the_tokenizer_adds_is_no_part_of_it(sentencepiece: Tokenizer) -> None:
    bare, spaced = spelled(sentencepiece, ["time", " time"]).token_ids
    assert text_of(sentencepiece, bare.tolist()) == b"time"
    assert spaced.tolist() == sentencepiece.encode("time", False).tolist(), "the text's own token"


@pytest.mark.parametrize("text", ["<|im_end|>", "so <|im_start|>"])
def test_special_tokens_spell_nothing(byte_bpe: Tokenizer, text: str) -> None:
    found = spell(["yes", text], byte_bpe, byte_bpe.vocab_size)
    assert isinstance(found, str) and repr(text) in found


def test_a_token_that_the_model_lacks_spells_nothing(byte_bpe: Tokenizer) -> None:
    last = int(max(byte_bpe.encode("time and over", False)))
    assert isinstance(spell(["time and over"], byte_bpe, last), str)


def test_which_go_on_from_which(byte_bpe: Tokenizer) -> None:
    ids = [byte_bpe.encode(text, False) for text in ("a", "ab", "a, b", "a, b, c", "b", "a, d")]
    longer = _longer([i[:] for i in ids])
    assert set(longer[0]) >= {2, 5} and longer[2] == (3,) and longer[4] == ()
    assert 3 not in longer[0], "only those with none between"
