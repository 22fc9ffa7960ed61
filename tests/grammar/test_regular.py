"""Automata of our own say what llguidance says: masks, ends, forced tokens, refusals."""

from __future__ import annotations

import random
import re
import time

import numpy as np
import pytest

from quire.errors import GrammarFailed, InvalidGrammar
from quire.grammar.automaton import DEAD, Automaton, automaton_of
from quire.grammar.compiled import CompiledGrammar
from quire.grammar.compiler import GrammarCompiler
from quire.grammar.plain_regex import read
from quire.grammar.regex import translated
from quire.grammar.regular import RegularGrammar, RegularMatcher
from quire.inputs.tokenizer import Tokenizer
from quire.params.structured import StructuredOutputsParams
from quire.steps.automata import NO_TOKEN
from tests.grammar.regexes import REGEXES, random_regexes
from tests.grammar.walking import allowed_ids, new_bits

CHOICES = [
    ["yes", "no"],
    ["positive", "negative", "neutral"],
    ["a", "ab", "abc"],
    ["東京", "é", "x"],
]
LONG = ["[a-z ]{60}", "([a-z]+ ){5}[a-z]+", '[^"\n]*', "x.{0,30}", "[a-z ]+", r"-?\d+(\.\d+)?"]


def compiled(compiler: GrammarCompiler, asked: str | list[str]) -> CompiledGrammar:
    if isinstance(asked, list):
        return compiler.compile(StructuredOutputsParams(choice=asked))
    return compiler.compile(StructuredOutputsParams(regex=asked))


def walk(grammar: CompiledGrammar, vocab_size: int, ends: frozenset[int], seed: int) -> int:
    """Both ways side by side, to the end or for some tokens; how many."""
    rng = random.Random(seed)
    ours, theirs = grammar.matcher(), grammar.llguidance_matcher()
    assert isinstance(ours, RegularMatcher)
    for step in range(40):
        where = (grammar.text, ours._token_ids)
        assert ours.is_complete == theirs.is_complete, where
        assert ours.is_stopped == theirs.is_stopped, where
        assert ours.forced() == theirs.forced(), where
        mine, other = new_bits(vocab_size), new_bits(vocab_size)
        ours.fill(mine)
        theirs.fill(other)
        assert np.array_equal(mine, other), where
        ids = allowed_ids(theirs, vocab_size).tolist()
        token = rng.choice(ids)
        if ours.is_stopped or (token in ends and rng.random() < 0.8):
            return step
        assert ours.accept(token) and theirs.accept(token)
    return 40


def test_what_a_device_follows_forces_what_the_matcher_forces(
    compiler: GrammarCompiler, vocab_size: int, byte_bpe: Tokenizer
) -> None:
    """By the state alone, however a row came there; and one token at a time."""
    rng, num_forced, ends = random.Random(4), 0, frozenset(byte_bpe.eos_ids)
    literal = ["abc[a-z]+def", r"\d{4}-\d{2}-\d{2}", '{"name": "[a-z]+", "age": [0-9]{1,3}}']
    for asked in [*random_regexes(30), *CHOICES, *LONG[:2], *literal]:
        try:
            grammar = compiled(compiler, asked)
        except InvalidGrammar:
            continue
        grammar.prepare_walk()
        matcher = grammar.matcher()
        if not isinstance(matcher, RegularMatcher) or matcher.walkable is None:
            continue
        form, ahead = matcher.walkable, list[int]()
        while not matcher.is_stopped and matcher.num_tokens < 30:
            forced = matcher.forced()
            assert form.forced[matcher.state] == (forced[0] if forced else NO_TOKEN), asked
            assert forced[: len(ahead)] == ahead, asked
            num_forced += bool(forced)
            token = int(rng.choice(allowed_ids(matcher, vocab_size).tolist()))
            if token in ends:
                break
            assert matcher.accept(token)
            ahead = forced[1:]
    assert num_forced > 20


def test_a_device_does_not_follow_what_forces_a_character_in_two_ways(
    compiler: GrammarCompiler,
) -> None:
    """Behind the first byte of a character the rest is spelled otherwise than with it."""
    grammars = [compiled(compiler, asked) for asked in ("日本(語|人)", "[a-z ]+")]
    for grammar in grammars:
        grammar.prepare_walk()
    assert [grammar.matcher().walkable is None for grammar in grammars] == [True, False]


def test_the_form_for_a_device_is_made_when_enough_rows_ask(
    byte_bpe: Tokenizer, vocab_size: int
) -> None:
    ends, asked = byte_bpe.eos_ids, StructuredOutputsParams(regex="[a-z]{3}")
    for for_device in (True, False):
        made = GrammarCompiler(byte_bpe, vocab_size=vocab_size, eos_ids=ends, for_device=for_device)
        first = made.compile(asked)
        assert first.matcher().walkable is None
        grammars = {made.compile(asked) for _ in range(20)}
        assert grammars == {first}
        deadline = time.monotonic() + 20 * for_device
        while first.matcher().walkable is None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert (first.matcher().walkable is not None) == for_device
        made.close()


def test_a_form_that_cannot_be_made_is_spoken_of(
    byte_bpe: Tokenizer,
    vocab_size: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(grammar: RegularGrammar) -> None:
        raise RuntimeError("broken")

    asked = StructuredOutputsParams(regex="[a-z]{3}")
    made = GrammarCompiler(
        byte_bpe, vocab_size=vocab_size, eos_ids=byte_bpe.eos_ids, for_device=True
    )
    made.compile(asked)
    monkeypatch.setattr(RegularGrammar, "prepare_walk", fail)
    with caplog.at_level("INFO", "quire"):
        for _ in range(20):
            made.compile(asked)
        deadline = time.monotonic() + 20
        while not caplog.text and time.monotonic() < deadline:
            time.sleep(0.01)
    made.close()
    assert caplog.text.count("RuntimeError: broken") == 1


@pytest.mark.parametrize(
    "regex",
    [r"\w+@\w+\.com", r"[\w.-]{1,3}", r"\pL{2}\PL", r"[^\p{L}\s]\D", r"\p{Greek}+|[\p{Lu}x]"],
)
def test_classes_of_unicode_have_automata_on_a_device(
    regex: str, compiler: GrammarCompiler, vocab_size: int, byte_bpe: Tokenizer
) -> None:
    grammar = compiled(compiler, regex)
    assert not isinstance(grammar.matcher(), RegularMatcher), "their tables take time to read"
    grammar.prepare_walk()
    for seed in range(6):
        walk(grammar, vocab_size, frozenset(byte_bpe.eos_ids), seed)


def test_masks_ends_and_forced_tokens_are_llguidances(
    compiler: GrammarCompiler, vocab_size: int, byte_bpe: Tokenizer
) -> None:
    num_regular = num_steps = 0
    for number, asked in enumerate([*REGEXES, *random_regexes(60), *CHOICES, *LONG]):
        try:
            grammar = compiled(compiler, asked)
        except InvalidGrammar:
            continue
        if not isinstance(grammar.matcher(), RegularMatcher):
            continue
        num_regular += 1
        for seed in range(3):
            num_steps += walk(grammar, vocab_size, frozenset(byte_bpe.eos_ids), 10 * number + seed)
    assert num_regular > 90 and num_steps > 600


def test_so_they_are_where_characters_are_spelled_in_bytes(sentencepiece: Tokenizer) -> None:
    """And with ids that the model has beyond its tokenizer."""
    size, ends = sentencepiece.vocab_size + 70, frozenset(sentencepiece.eos_ids)
    made = GrammarCompiler(sentencepiece, vocab_size=size, eos_ids=sentencepiece.eos_ids)
    try:
        for number, asked in enumerate([*CHOICES, *LONG, "日本(語|人)", "[😀-😎]{2}", "é+ü?"]):
            for seed in range(2):
                walk(compiled(made, asked), size, ends, 10 * number + seed)
    finally:
        made.close()


def taken(automaton: Automaton, text: str) -> bool:
    """Whether it takes the whole of a text."""
    state = 0
    for byte in text.encode():
        state = int(automaton.follows[state, byte]) if state != DEAD else DEAD
    return state != DEAD and bool(automaton.accepts[state])


@pytest.mark.filterwarnings("ignore:Possible")  # Python's own word on [[a]
def test_automata_take_what_pythons_re_takes() -> None:
    rng, num_taken = random.Random(2), 0
    for regex in [*REGEXES, *random_regexes(80), *LONG]:
        try:
            part = read(translated(regex))
        except InvalidGrammar:
            continue
        automaton = None if part is None else automaton_of(part)
        if automaton is None:
            continue
        for _ in range(60):
            text = "".join(rng.choice("ab x07-,:é_Té😀\n.yes") for _ in range(rng.randint(0, 6)))
            expected = re.fullmatch(regex, text) is not None
            assert taken(automaton, text) == expected, (regex, text)
        for _ in range(10):  # texts that it takes
            state, data = 0, bytearray()
            while len(data) < 60 and not (automaton.accepts[state] and rng.random() < 0.3):
                ways = np.flatnonzero(automaton.follows[state] != DEAD)
                if not len(ways):
                    break
                data.append(int(rng.choice(ways.tolist())))
                state = int(automaton.follows[state, data[-1]])
            if automaton.accepts[state]:
                num_taken += 1
                assert re.fullmatch(regex, data.decode()), (regex, data)
    assert num_taken > 500


@pytest.mark.parametrize(
    "regex",
    ["a^b", "a*?b", "(?i)a", r"\w+", "[[:alpha:]]", "a{3", "(?=a)b", "[a&&b]", r"\p{L}", "(?<=a)b"],
)
def test_what_dialects_read_differently_is_left_alone(regex: str) -> None:
    assert read(regex) is None


@pytest.mark.parametrize("regex", [".{0,500}x", "((a|b){90}){90}", "a{5000}", "(" * 60 + ")" * 60])
def test_what_is_too_large_is_left_alone(regex: str) -> None:
    part = read(regex)
    assert part is None or automaton_of(part) is None


def test_forks_and_tokens_that_may_not_come(
    compiler: GrammarCompiler, vocab_size: int, byte_bpe: Tokenizer
) -> None:
    grammar = compiled(compiler, r"\d{2}-[a-z]{2,9}!")
    one = grammar.matcher()
    letter = byte_bpe.backend.token_to_id("x")
    assert letter is not None and isinstance(one, RegularMatcher)
    rng = random.Random(1)
    while one.num_tokens < 3:
        one.accept(rng.choice(allowed_ids(one, vocab_size).tolist()))
    before = allowed_ids(one, vocab_size).tolist()
    other = one.fork()
    assert allowed_ids(other, vocab_size).tolist() == before and other.forced() == one.forced()
    for _ in range(2):
        other.accept(rng.choice(allowed_ids(other, vocab_size).tolist()))
    assert allowed_ids(one, vocab_size).tolist() == before
    fresh = grammar.matcher()
    assert not fresh.accept(letter)
    assert isinstance(fresh.error, GrammarFailed) and "not allowed after the 0" in str(fresh.error)
    assert not fresh.is_complete and not fresh.is_stopped
    with pytest.raises(GrammarFailed):
        fresh.fill(new_bits(vocab_size))
