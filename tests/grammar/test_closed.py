"""Objects have the properties that their schema names, where it says nothing of others."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quire.errors import GrammarFailed, InvalidGrammar
from quire.grammar.closed import close
from quire.grammar.compiler import GrammarCompiler
from quire.grammar.schema import walk
from quire.params.structured import StructuredOutputsParams
from tests.grammar.test_everyday import judge
from tests.grammar.walking import Walker
from tests.grammar.wild import wild_schema

NONE = {"additionalProperties": False}
NAMED: dict[str, Any] = {"type": "object", "properties": {"a": {}, "b": {}}, "required": ["a"]}
OTHER = {"type": "object", "properties": {"c": {}}}
OBJECT, ARRAY = {"type": "object"}, {"type": "array"}
REFERENCE = {"$ref": "#/$defs/A"}


def after(schema: Any) -> Any:
    made = json.loads(json.dumps(schema))  # in which no two parts are the same object
    close(made)
    return made


@pytest.mark.parametrize(
    ("before", "wanted"),
    [
        (NAMED, {**NAMED, **NONE}),
        ({"properties": {}}, {"type": "object", "properties": {}, **NONE}),
        ({"items": NAMED, "const": NAMED}, {"items": {**NAMED, **NONE}, "const": NAMED}),
        ({"anyOf": [NAMED, OTHER]}, {"anyOf": [{**NAMED, **NONE}, {**OTHER, **NONE}]}),
        ({"allOf": [NAMED], "title": "A"}, {"allOf": [{**NAMED, **NONE}], "title": "A"}),
        ({"$defs": {"A": NAMED}, **REFERENCE}, {"$defs": {"A": {**NAMED, **NONE}}, **REFERENCE}),
        (
            {**NAMED, "anyOf": [{"required": ["b"]}]},
            {**NAMED, "anyOf": [{"required": ["b"]}], **NONE},
        ),
        ({**NAMED, "minProperties": 1}, {**NAMED, "minProperties": 1, **NONE}),
        ({"patternProperties": {"x": {}}}, {**OBJECT, "patternProperties": {"x": {}}, **NONE}),
        ({"items": {"items": {}}}, {**ARRAY, "items": {**ARRAY, "items": {}}}),
        ({"additionalProperties": {}}, {**OBJECT, "additionalProperties": {}}),
        ({"prefixItems": [{}, {}]}, {**ARRAY, "prefixItems": [{}, {}], "items": False}),
        ({"items": [NAMED]}, {**ARRAY, "items": [{**NAMED, **NONE}], "additionalItems": False}),
    ],
)
def test_what_is_named_is_all_there_is(before: Any, wanted: Any) -> None:
    assert after(before) == wanted


@pytest.mark.parametrize(
    "schema",
    [
        {**NAMED, "additionalProperties": True},
        {**NAMED, "additionalProperties": {"type": "integer"}},
        {**NAMED, "unevaluatedProperties": {"type": "integer"}},
        {**NAMED, "required": ["a", "unnamed"]},
        {**NAMED, "minProperties": 3},
        {**NAMED, "enum": [{"a": 1, "c": 1}]},
        {**NAMED, "propertyNames": {"pattern": "c"}},
        {**NAMED, "allOf": [OTHER]},
        {**NAMED, "anyOf": [{"required": ["c"]}, {"required": ["a"]}]},
        {**NAMED, "if": {"required": ["b"]}, "then": OTHER},
        {**NAMED, "dependentSchemas": {"a": OTHER}},
        {**NAMED, **REFERENCE, "$defs": {"A": OTHER}},
        {"allOf": [NAMED, OTHER]},
        {"allOf": [REFERENCE, {"required": ["c"]}], "$defs": {"A": NAMED}},
        {"anyOf": [NAMED, OTHER], "required": ["c"]},
        {"oneOf": [{"items": NAMED}, {"items": OTHER}]},
        {"not": {"properties": {"a": NAMED}}},
        {"items": {"$id": "urn:a", **NAMED}},
        {"type": "object"},
        {"prefixItems": [{}], "minItems": 2},
        {"type": "array", "prefixItems": [{}], "items": {}},
        {"type": ["array", "null"], "items": {}},
        {"items": {}, "properties": {}, "additionalProperties": {}},
        {"items": {}, "minLength": 1},
        {"maxItems": 3},
    ],
)
def test_what_may_be_named_elsewhere_stays_open(schema: Any) -> None:
    assert after(schema) == schema


def test_an_object_of_two_parts_has_the_properties_of_both(
    compiler: GrammarCompiler, walker: Walker
) -> None:
    """Closed each by itself, they would leave no text."""
    one, other = (
        {"type": "object", "required": [n], "properties": {n: {"const": 1}}} for n in "ab"
    )
    grammar = compiler.compile(StructuredOutputsParams(json={"allOf": [one, other]}))
    assert {"a", "b"} <= json.loads(walker.walk(grammar.matcher(), 0).text).keys()


def test_closing_leaves_texts_and_only_valid_ones(
    compiler: GrammarCompiler, walker: Walker, long_mode: bool
) -> None:
    """Against the same schema with `true` written wherever nothing is said."""
    num_closed = 0
    for seed in range(1500 if long_mode else 60):
        open_schema, unsaid = wild_schema(seed), wild_schema(seed)
        for schema in (open_schema, unsaid):
            for _, node in walk(schema):
                if isinstance(node, dict) and node.pop("additionalProperties", None) is not None:
                    node |= {"additionalProperties": True} if schema is open_schema else {}
        try:
            compiler.compile(StructuredOutputsParams(json=open_schema))
        except InvalidGrammar:
            continue
        found = compiler.compile(StructuredOutputsParams(json=unsaid))
        num_closed += '"additionalProperties": false' in found.text
        try:
            written = walker.walk(found.matcher(), seed, max_tokens=120)
        except GrammarFailed:
            continue
        judge(unsaid, written)
    assert num_closed > 5
