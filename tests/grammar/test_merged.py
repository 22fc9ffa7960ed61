"""An object of several parts is one object, that the same values fulfil."""

from __future__ import annotations

import importlib
import json
import random
from typing import Any

import pytest

from quire.grammar.merged import merge_parts

jsonschema = importlib.import_module("jsonschema")
A: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
B: dict[str, Any] = {"properties": {"b": {}}}


def after(schema: Any) -> Any:
    made = json.loads(json.dumps(schema))
    merge_parts(made)
    return made


@pytest.mark.parametrize(
    ("before", "wanted"),
    [
        (
            {"allOf": [A, B], "title": "x"},
            {**A, "properties": {**A["properties"], "b": {}}, "title": "x"},
        ),
        ({**B, "allOf": [A]}, {**A, "properties": {"b": {}, **A["properties"]}}),
        ({"allOf": [B, {"required": ["c"]}]}, {**B, "required": ["c"]}),
        (
            {"allOf": [{**B, "additionalProperties": False}, {"properties": {"c": {}}}]},
            {**B, "additionalProperties": False},
        ),
        (
            {"allOf": [{"$ref": "#/$defs/N"}, B], "$defs": {"N": {"allOf": [A, A]}}},
            {**A, "properties": {**A["properties"], "b": {}}, "$defs": {"N": A}},
        ),
    ],
)
def test_parts_that_name_properties_are_one(before: Any, wanted: Any) -> None:
    assert after(before) == wanted


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [A]},
        {"allOf": [A, {"properties": {"a": {"type": "string"}}}]},
        {"allOf": [A, {"minProperties": 2}]},
        {"allOf": [A, B], "anyOf": [{"required": ["b"]}]},
        {"allOf": [{"type": "string"}, {"description": "x"}]},
        {"allOf": [{**A, "additionalProperties": False}, {**B, "required": ["b"]}]},
        {"properties": {"x": {"allOf": [A, B]}, "y": {"$ref": "#/properties/x/allOf/0"}}},
        {"allOf": [{"$ref": "#"}, A]},
    ],
)
def test_what_is_not_the_same_stays(schema: Any) -> None:
    assert after(schema) == schema


def test_definitions_that_double_end_soon() -> None:
    inner = {
        "type": "object",
        "properties": {str(i): {"allOf": [{"$ref": "#/$defs/0"}, B]} for i in "12"},
    }
    chain = {str(i): json.loads(json.dumps(inner).replace("/0", f"/{i - 1}")) for i in range(1, 40)}
    made = after({"$ref": "#/$defs/39", "$defs": {"0": A, **chain}})
    assert len(json.dumps(made)) < 1_000_000


def test_the_same_values_fulfil_it() -> None:
    rng, merged = random.Random(3), 0
    for _ in range(300):
        schema = {"allOf": [_part(rng) for _ in range(rng.randint(1, 3))], **_part(rng, 0.3)}
        made = after(schema)
        merged += made != schema
        for _ in range(12):
            value = {name: rng.choice([1, "x"]) for name in "abcd" if rng.random() < 0.5}
            both = [jsonschema.Draft202012Validator(one).is_valid(value) for one in (schema, made)]
            assert both[0] == both[1], (schema, value)
    assert merged > 100


def _part(rng: random.Random, chance: float = 0.8) -> dict[str, Any]:
    names = [name for name in "abc" if rng.random() < chance]
    value = {"type": rng.choice(["integer", "integer", "integer", "string"])}
    said = {
        "type": "object",
        "properties": dict.fromkeys(names, value),
        "required": [name for name in "abcd" if rng.random() < 0.15],
        "additionalProperties": rng.random() < 0.5,
    }
    return {word: one for word, one in said.items() if rng.random() < chance}
