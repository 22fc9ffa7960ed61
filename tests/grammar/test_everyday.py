"""Schemas as people have them: how each is followed, and that what is written is valid."""

from __future__ import annotations

import importlib
import json
from typing import Any

import pytest

from quire.errors import InvalidGrammar
from quire.grammar.compiler import GrammarCompiler
from quire.grammar.regular import RegularMatcher
from quire.inputs.tokenizer import Tokenizer
from quire.params.structured import StructuredOutputsParams
from tests.grammar.everyday import AUTOMATON, EVERYDAY, MASK, REFUSED
from tests.grammar.test_regular import walk
from tests.grammar.walking import Walker

jsonschema = importlib.import_module("jsonschema")


@pytest.mark.parametrize("name", EVERYDAY)
def test_an_everyday_schema_is_followed_as_it_should_be(
    name: str,
    compiler: GrammarCompiler,
    walker: Walker,
    byte_bpe: Tokenizer,
    vocab_size: int,
    long_mode: bool,
) -> None:
    schema, way = EVERYDAY[name]
    for compact in (True, False) if long_mode else (len(name) % 2 == 0,):
        params = StructuredOutputsParams(json=schema, disable_any_whitespace=compact)
        try:
            grammar = compiler.compile(params)
        except InvalidGrammar:
            assert way == REFUSED
            continue
        grammar.prepare_walk()
        matcher = grammar.matcher()
        assert (AUTOMATON if isinstance(matcher, RegularMatcher) else MASK) == way
        if way == AUTOMATON:
            assert matcher.walkable is not None
            walk(grammar, vocab_size, frozenset(byte_bpe.eos_ids), len(name))
        judge(schema, walker.walk(grammar.matcher(), len(name), max_tokens=150))


def judge(schema: dict[str, Any], found: Any) -> None:
    """What has come to its end is valid. The judge reads no classes of Unicode."""
    if found.ended and r"\\p{" not in json.dumps(schema):
        of_draft = jsonschema.validators.validator_for(schema)
        errors = of_draft(schema, format_checker=of_draft.FORMAT_CHECKER).iter_errors(
            json.loads(found.text)
        )
        assert [error.message for error in errors] == [], found.text


def test_most_are_followed_by_automata() -> None:
    ways = [way for _, way in EVERYDAY.values()]
    assert len(ways) > 120 and ways.count(AUTOMATON) > 110 and ways.count(REFUSED) < 10
