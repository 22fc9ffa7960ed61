"""Schemas that an automaton follows: masks, ends and forced tokens are those of llguidance."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from quire.errors import InvalidGrammar
from quire.grammar.compiler import GrammarCompiler
from quire.grammar.plain_numbers import bounds_of, number, whole_number
from quire.grammar.plain_schema import read_schema
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
YES = {"type": "boolean"}
BOUNDS: list[dict[str, Any]] = [
    {},
    {"minimum": 1},
    {"minimum": -12.5},
    {"maximum": 3.25},
    {"maximum": -7},
    {"minimum": 17, "maximum": 3456},
    {"minimum": -3, "maximum": 99.5},
    {"minimum": -120, "exclusiveMaximum": -7.25},
    {"exclusiveMinimum": 0, "exclusiveMaximum": 2},
    {"exclusiveMinimum": 0, "maximum": 1.05},
    {"minimum": 3, "exclusiveMinimum": True},
    {"minimum": 5, "maximum": 5},
    {"minimum": -(2**53) + 1, "maximum": 2**53 - 1},
]
PLAIN: list[dict[str, Any]] = [
    TEXT,
    {"type": "string", "minLength": 2, "maxLength": 7},
    {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
    {"type": "string", "pattern": r"a\"|^b\S$", "maxLength": 9},
    {"type": "string", "pattern": r"^\w+@\w+\.(com|org)$", "maxLength": 20},
    {"type": "string", "pattern": '^[äöü\n"\x7f]{1,3}$'},
    {"type": "string", "format": "date", "pattern": "^2"},
    *({"type": "string", "format": name} for name in ("time", "date-time", "duration", "email")),
    *({"type": "string", "format": name} for name in ("hostname", "ipv4", "ipv6")),
    *({"type": "string", "format": name} for name in ("uuid", "uri")),
    {"type": "string", "pattern": r"^\p{L}+\D$"},
    *({"type": "integer", "multipleOf": 3, **one} for one in BOUNDS[:7]),
    *({"type": "array", "items": {"type": "integer", **one}} for one in BOUNDS),
    *({"type": "array", "items": {"type": "number", **one}} for one in BOUNDS),
    {"type": ["string", "null"], "maximum": 3},
    {"type": "array", "items": {"type": "null"}, "maxItems": 2},
    {"type": "array", "items": YES, "minItems": 1},
    {"type": "array", "items": WHOLE, "minItems": 2, "maxItems": 3},
    {"type": "array", "items": WHOLE, "maxItems": 0},
    {"type": "array", "prefixItems": [TEXT, WHOLE], "items": False},
    {"type": "array", "prefixItems": [WHOLE], "items": YES, "minItems": 3, "maxItems": 4},
    {"type": "array", "items": [TEXT, WHOLE], "additionalItems": False, "minItems": 2},
    {"type": "array", "prefixItems": [TEXT, TEXT, TEXT], "minItems": 1, "maxItems": 2},
    an_object(["b"], a=WHOLE, b={"enum": ["x", "yes"]}, c={"anyOf": [WHOLE, {"type": "null"}]}),
    an_object([], a=WHOLE, c=YES),
    an_object([]),
    {"type": "object", "additionalProperties": WHOLE},
    {"type": "object", "additionalProperties": YES, "minProperties": 1, "maxProperties": 3},
    {**an_object(["a"], a=WHOLE, ab=TEXT), "additionalProperties": YES},
    {"type": "object", "patternProperties": {"^x-[a-z]+$": YES}, "additionalProperties": False},
    {"const": "hello"},
    {"const": {"a": [1, "b", {"c": None}], "d": {}}},
    {"enum": ["a b", "é", 'q"t', "x\ny", "\x01", None, True, 3, -0.25]},
    {"type": "string", "enum": ["a", None]},
    {"oneOf": [TEXT, {"type": "null"}], "discriminator": {"propertyName": "a"}},
    {"$defs": {"P": POINT}, "description": "two", **an_object(["p"], p={"$ref": "#/$defs/P"})},
]
OTHERS: list[Any] = [
    {},
    True,
    {"type": "object"},
    {"type": "object", "properties": {"a": TEXT}},
    {"type": "string", "pattern": "(?i)a"},
    {"type": "string", "maxLength": 100_000},
    {"type": "integer", "multipleOf": 1001},
    {"type": "number", "multipleOf": 3},
    {"type": "array"},
    {"type": "array", "items": TEXT, "uniqueItems": True},
    {"type": "integer", "enum": [1.0]},
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


def test_whole_numbers_between_bounds_are_those() -> None:
    for low, high in [(0, 0), (0, 120), (7, 7), (17, 3456), (-9, 10), (-999, 1000), (-44, -7)]:
        bounds = bounds_of({"minimum": low, "maximum": high})
        assert bounds is not None
        regex = re.compile(whole_number(bounds) or "")
        assert [n for n in range(-4000, 4000) if regex.fullmatch(str(n))] == [*range(low, high + 1)]
        assert not regex.fullmatch("0999") and not regex.fullmatch("-07")


@pytest.mark.parametrize("said", [*BOUNDS, {"minimum": 0.25, "maximum": 0.75}], ids=json.dumps)
def test_fractions_between_bounds_are_those(said: dict[str, Any]) -> None:
    bounds = bounds_of(said)
    assert bounds is not None
    regex = re.compile(number(bounds) or "")
    low, high = bounds.low, bounds.high
    for thousandths in range(-13_000, 13_000, 7):
        value = Decimal(thousandths) / 100
        above = low is None or (low <= value if bounds.takes_low else low < value)
        below = high is None or (value <= high if bounds.takes_high else value < high)
        text = format(value.normalize(), "f")
        assert bool(regex.fullmatch(text)) == (above and below), text


def test_what_llguidance_gets_wrong_is_not_written(
    compiler: GrammarCompiler, byte_bpe: Tokenizer
) -> None:
    """A whole number that is excluded, and a name spelled by number."""
    pieces = byte_bpe.token_bytes.pieces(False, False)
    ids = {pieces[i]: i for i in range(byte_bpe.vocab_size)}

    def takes(schema: Any, text: str) -> bool:
        matcher = compiler.compile(StructuredOutputsParams(json=schema)).llguidance_matcher()
        tokens = [ids[bytes([byte])] for byte in text.encode()]
        return all(matcher.accept(token) for token in tokens) and matcher.is_complete

    above: dict[str, Any] = {"type": "number", "exclusiveMinimum": 3, "maximum": 3.5}
    below: dict[str, Any] = {"type": "number", "minimum": -0.5, "exclusiveMaximum": 0}
    found = [takes(above, "3"), takes(above, "3.2"), takes(below, "-0"), takes(below, "-0.1")]
    assert found == [False, True, False, True]
    for others in (YES, True):
        named = {**an_object([], a=WHOLE), "additionalProperties": others}
        texts = ['{"a":1}', '{"b":true}', '{"a":true}', '{"\\u0061":true}']
        assert [takes(named, text) for text in texts] == [True, True, False, False]
    control = {**an_object([], a={"const": "\x01"}), "additionalProperties": YES}
    assert takes(control, '{"a":"\\u0001"}')
