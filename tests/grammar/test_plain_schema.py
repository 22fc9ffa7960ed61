"""Schemas that an automaton follows: masks, ends and forced tokens are those of llguidance."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from quire.errors import InvalidGrammar
from quire.grammar.compiler import GrammarCompiler
from quire.grammar.plain_schema import _between, read_schema
from quire.grammar.regular import RegularMatcher
from quire.inputs.tokenizer import Tokenizer
from quire.params.structured import StructuredOutputsParams
from tests.grammar.schemas import corpus
from tests.grammar.test_regular import walk


def an_object(required: list[str], **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


WHOLE, TEXT = {"type": "integer"}, {"type": "string"}
POINT = an_object(["x"], x={"type": "number", "title": "X"})
PLAIN: list[dict[str, Any]] = [
    TEXT,
    {"type": "string", "minLength": 2, "maxLength": 7},
    WHOLE,
    {"type": "integer", "minimum": 1},
    {"type": "integer", "minimum": 17, "maximum": 3456},
    {"type": "array", "items": {"type": "null"}, "maxItems": 2},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 1},
    {"type": "array", "items": WHOLE, "minItems": 2, "maxItems": 3},
    an_object(["b"], a=WHOLE, b={"enum": ["x", "yes"]}, c={"anyOf": [WHOLE, {"type": "null"}]}),
    an_object([], a=WHOLE, c={"type": "boolean"}),
    an_object([]),
    {"const": "hello"},
    {"enum": ["a b", "c", None, True]},
    {"$defs": {"P": POINT}, "description": "two", **an_object(["p"], p={"$ref": "#/$defs/P"})},
]
OTHERS: list[Any] = [
    {},
    True,
    {"type": "object"},
    {"type": "object", "properties": {"a": TEXT}},
    {"type": "string", "pattern": "a+"},
    {"type": "string", "format": "date"},
    {"type": "string", "maxLength": 100_000},
    {"type": "integer", "minimum": -3, "maximum": 3},
    {"type": "integer", "multipleOf": 3},
    {"type": "number", "minimum": 0},
    {"type": ["string", "null"]},
    {"type": "array"},
    {"type": "array", "items": TEXT, "uniqueItems": True},
    {"type": "array", "items": False, "prefixItems": [TEXT]},
    {"enum": [1.5]},
    {"enum": ["é"]},
    {"type": "string", "enum": ["a", None]},
    {"type": "boolean", "const": True},
    {"type": "string", "const": "a", "minLength": 3},
    {"anyOf": [TEXT], "type": "string"},
    an_object(["b"], a=WHOLE),
    {"$defs": {"T": an_object([], t={"$ref": "#/$defs/T"})}, "$ref": "#/$defs/T"},
    {
        "$defs": {
            "D0": TEXT,
            **{f"D{i}": {"anyOf": [{"$ref": f"#/$defs/D{i - 1}"}] * 4} for i in range(1, 8)},
        },
        "$ref": "#/$defs/D7",
    },
]


@pytest.fixture(scope="module")
def compiler(byte_bpe: Tokenizer, vocab_size: int) -> Iterator[GrammarCompiler]:
    ends = byte_bpe.eos_ids
    made = GrammarCompiler(byte_bpe, vocab_size=vocab_size, eos_ids=ends, for_device=True)
    yield made
    made.close()


def check(
    compiler: GrammarCompiler, tokenizer: Tokenizer, schema: Any, vocab_size: int, **options: Any
) -> bool:
    """Whether an automaton follows it; if so, step by step as llguidance does."""
    try:
        grammar = compiler.compile(StructuredOutputsParams(json=schema, **options))
    except InvalidGrammar:
        return False
    grammar.prepare_walk()
    if not isinstance(grammar.matcher(), RegularMatcher):
        return False
    for seed in range(4):
        walk(grammar, vocab_size, frozenset(tokenizer.eos_ids), seed)
    return True


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("schema", PLAIN, ids=json.dumps)
def test_masks_are_llguidances(
    compiler: GrammarCompiler, byte_bpe: Tokenizer, vocab_size: int, schema: Any, compact: bool
) -> None:
    options = {"disable_any_whitespace": compact}
    assert check(compiler, byte_bpe, schema, vocab_size, **options)


def test_so_are_those_of_schemas_as_people_write_them(
    compiler: GrammarCompiler, byte_bpe: Tokenizer, vocab_size: int
) -> None:
    schemas = [schema for _, schema in corpus(42)]
    options = {"disable_any_whitespace": True}
    plain = [check(compiler, byte_bpe, one, vocab_size, **options) for one in schemas]
    assert 4 < sum(plain) < len(plain)


@pytest.mark.parametrize("schema", OTHERS, ids=json.dumps)
def test_what_says_more_is_llguidances(schema: Any) -> None:
    assert read_schema(schema, None) is None


def test_bounds_are_kept() -> None:
    for low, high in [(0, 0), (0, 120), (7, 7), (9, 10), (17, 3456), (100, 999), (999, 1000)]:
        regex = re.compile("|".join(_between(low, high)))
        found = [n for n in range(4000) if regex.fullmatch(str(n))]
        assert found == list(range(low, high + 1)), (low, high)
    assert not regex.fullmatch("0999")
