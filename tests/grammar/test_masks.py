"""MaskFiller: many rows at once give the masks that each row gives alone."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest

from quire.errors import GrammarFailed
from quire.grammar.compiler import GrammarCompiler
from quire.grammar.limits import GrammarLimits
from quire.grammar.masks import MaskFiller, Matcher, Rows, mask_threads
from quire.inputs.tokenizer import Tokenizer
from quire.params.structured import StructuredOutputsParams
from tests.grammar.schemas import corpus
from tests.grammar.walking import Walker, allowed_ids, new_bits


@pytest.fixture
def matchers(compiler: GrammarCompiler, walker: Walker) -> list[Matcher]:
    """Rows of many grammars, several rows each, at various places."""
    made: list[Matcher] = []
    for row, (_, schema) in enumerate(corpus(28) * 3):
        grammar = compiler.compile(StructuredOutputsParams(json=schema))
        matcher = grammar.matcher()
        for token in walker.walk(grammar.matcher(), row).token_ids[: row % 9]:
            assert matcher.accept(token)
        made.append(matcher)
    for row, regex in enumerate(["[a-z ]+", "[a-z]{3,9}-x[0-9]+", "[a-z ]+"] * 3):
        matcher = compiler.compile(StructuredOutputsParams(regex=regex)).matcher()
        for token in walker.walk(matcher.fork(), row).token_ids[: row % 4]:
            assert matcher.accept(token)
        made.insert(7 * row + 6, matcher)
    return made


def rows_of_bits(count: int, vocab_size: int) -> Rows:
    return np.full((count, len(new_bits(vocab_size))), 0xFFFFFFFF, np.uint32)


def test_all_rows_at_once_are_each_row_alone(matchers: list[Matcher], vocab_size: int) -> None:
    filler = MaskFiller(num_threads=3)
    bits = rows_of_bits(len(matchers), vocab_size)
    assert filler.fill(matchers, bits) == {}
    for row, matcher in enumerate(matchers):
        alone = new_bits(vocab_size)
        matcher.fork().fill(alone)
        assert np.array_equal(bits[row], alone)
    again = rows_of_bits(len(matchers) + 2, vocab_size)
    assert filler.start(matchers, again).result() == {}
    assert np.array_equal(again[: len(matchers)], bits)
    assert (again[len(matchers) :] == 0xFFFFFFFF).all()
    assert filler.fill([], again) == {}
    filler.close()


def test_filling_runs_beside_the_caller(matchers: list[Matcher], vocab_size: int) -> None:
    filler = MaskFiller(num_threads=1)
    names = []
    pending = filler.start(matchers, rows_of_bits(len(matchers), vocab_size))
    pending.add_done_callback(lambda _: names.append(threading.current_thread().name))
    assert pending.result() == {}
    filler.close()
    assert filler.num_threads == 1
    assert mask_threads() >= 1


def test_a_row_with_an_error_has_no_mask_and_the_others_have_theirs(
    matchers: list[Matcher], vocab_size: int, byte_bpe: Tokenizer
) -> None:
    filler = MaskFiller(num_threads=2)
    expected, bits = (rows_of_bits(len(matchers), vocab_size) for _ in range(2))
    assert filler.fill(matchers, expected) == {}
    assert not matchers[5].accept(byte_bpe.backend.token_to_id("<s>"))
    failed = filler.fill(matchers, bits)
    assert list(failed) == [5]
    assert isinstance(failed[5], GrammarFailed)
    assert not bits[5].any()
    expected[5] = 0
    assert np.array_equal(bits, expected)
    filler.close()


def test_a_row_beyond_its_time_ends_with_its_own_error(
    matchers: list[Matcher], vocab_size: int
) -> None:
    """With no time at all every row is too slow: seen at the first call, ended at the second."""
    filler = MaskFiller(num_threads=1, limits=GrammarLimits(mask_seconds=0.0))
    bits = rows_of_bits(4, vocab_size)
    assert filler.fill(matchers[:4], bits) == {}
    failed = filler.fill(matchers[:4], bits)
    assert sorted(failed) == [0, 1, 2, 3]
    assert "the mask of one token took" in str(failed[0])
    assert matchers[0].error is failed[0]
    assert not bits.any()
    filler.close()


def test_a_wrong_array_is_refused(matchers: list[Matcher], vocab_size: int) -> None:
    filler = MaskFiller(num_threads=1)
    with pytest.raises(TypeError, match="a row for each matcher"):
        filler.fill(matchers, rows_of_bits(1, vocab_size))
    with pytest.raises(GrammarFailed, match="words of 32"):
        filler.fill(matchers[:1], rows_of_bits(1, vocab_size + 640))
    filler.close()


def test_tokens_taken_together_are_those_taken_one_by_one(
    matchers: list[Matcher], vocab_size: int, byte_bpe: Tokenizer
) -> None:
    """Also where one of them is not allowed, and where a text ends."""
    filler, rng = MaskFiller(num_threads=2), random.Random(4)
    alone = [matcher.fork() for matcher in matchers]
    wrong = byte_bpe.backend.token_to_id("<s>")
    assert wrong is not None
    for step in range(12):
        live = [i for i, m in enumerate(matchers) if m.error is None and not m.is_stopped]
        if len(live) < 8:
            break
        tokens = [int(rng.choice(allowed_ids(matchers[i], vocab_size))) for i in live]
        if step == 5:
            tokens[3] = wrong
        found = filler.accept([matchers[i] for i in live], tokens)
        assert found == [alone[i].accept(t) for i, t in zip(live, tokens, strict=True)]
        assert found.count(False) == (step == 5)
        for one, other in zip(matchers, alone, strict=True):
            assert str(one.error) == str(other.error) and one.num_tokens == other.num_tokens
            if one.error is None:
                assert one.is_stopped == other.is_stopped and one.forced() == other.forced()
    assert step > 5
    filler.close()
