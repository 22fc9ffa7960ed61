"""Values of the wrong kind in every place of grammars that are fine."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

Place = tuple[str | int, ...]

SCHEMAS: list[dict[str, Any]] = [
    {
        "type": "object",
        "properties": {
            "a": {"type": "string", "pattern": "^a+$", "minLength": 1, "format": "date"},
            "b c": {"type": ["integer", "null"], "minimum": 0, "maximum": 9, "multipleOf": 3},
        },
        "required": ["a"],
        "additionalProperties": False,
        "patternProperties": {"^x": {"type": "number", "exclusiveMinimum": 0}},
        "minProperties": 1,
    },
    {"$defs": {"a": {"properties": {"n": {"$ref": "#/$defs/a"}}}}, "$ref": "#/$defs/a"},
    {"anyOf": [{"type": "string"}, {"$ref": "#/anyOf/0"}, {"const": {"x": [1, None]}}]},
    {"oneOf": [{"type": "boolean"}, {"enum": [1, "a"]}], "description": "d", "default": 1},
    {"allOf": [{"minLength": 1}, {"type": "string"}], "not": {}},
    {
        "type": "array",
        "items": {"type": "integer"},
        "prefixItems": [{"type": "string"}, True],
        "minItems": 1,
        "maxItems": 3,
        "uniqueItems": False,
        "contains": {"type": "null"},
    },
    {
        "definitions": {"z": {"type": "null"}},
        "properties": {"q": {"$ref": "#/definitions/z"}},
        "dependentSchemas": {"q": {}},
        "propertyNames": {"pattern": "a"},
        "if": {},
        "unevaluatedProperties": False,
        "$id": "x",
        "x-guidance": {"lenient": True},
    },
]
_TAG = {
    "type": "tag",
    "begin": "<f=a>",
    "content": {"type": "json_schema", "json_schema": {"type": "integer"}},
    "end": "</f>",
}
TAGS: list[dict[str, Any]] = [
    {
        "structures": [{"begin": "<f=a>", "schema": {"type": "integer"}, "end": "</f>"}],
        "triggers": ["<f="],
    },
    {
        "type": "structural_tag",
        "format": {
            "type": "sequence",
            "elements": [
                {"type": "const_string", "value": "C"},
                {"type": "or", "elements": [_TAG, {"type": "regex", "pattern": "n+"}]},
                {**_TAG, "content": {"type": "any_text"}, "end": ["</f>", "</g>"]},
            ],
        },
    },
    {
        "type": "structural_tag",
        "format": {
            "type": "triggered_tags",
            "triggers": ["<f="],
            "tags": [_TAG],
            "stop_after_first": True,
        },
    },
    {
        "type": "structural_tag",
        "format": {"type": "tags_with_separator", "tags": [_TAG], "separator": ","},
    },
]
VALUES: list[Any] = [
    *(None, True, 5, -1, 1.5, 10**30, float("nan")),
    *("", "²", "#/anyOf/²", "\ud800", "\x00", "(?", "<s>", [], [None], [{}], {}, {"": 5}),
]
TEXTS = {
    "regex": ["[a-z]+(x|y){2,3}", r"\d{3}-\w*"],
    "grammar": [
        'start: A b\nA: /[a-z]+/ "x"\nb: "(" b ")" | A?\n%ignore /[ ]+/',
        'root ::= "a" list? | [0-9]{2,3}\nlist ::= "," root # comment',
    ],
}
_PIECES = [
    *("\x00", "²", '"', "\\", "/", "{", "}", "[", "]", "(", ")", "\n", "é", "|", "::=", "<s>"),
    *("\\u{110000}", "\\uD800", "%json {", "{,}", "{9,1}", "{99999999999999999999}", "(?P<a>"),
]


def _places(value: Any, here: Place = ()) -> Iterator[Place]:
    yield here
    inside: Any = ()
    if isinstance(value, dict):
        inside = value.items()
    elif isinstance(value, list):
        inside = enumerate(value)
    for name, item in inside:
        yield from _places(item, (*here, name))


def _with(value: Any, place: Place, other: Any) -> Any:
    if not place:
        return other
    changed = copy.copy(value)
    changed[place[0]] = _with(value[place[0]], place[1:], other)
    return changed


def hostile() -> Iterator[dict[str, Any]]:
    """Arguments of StructuredOutputsParams."""
    for schema in SCHEMAS:
        for place in _places(schema):
            for value in VALUES:
                changed = _with(schema, place, value)
                yield {"json": changed if place else json.dumps(changed)}
    for tag in TAGS:
        for place in _places(tag):
            for value in VALUES:
                yield {"structural_tag": json.dumps(_with(tag, place, value))}
    chooser = random.Random(0)
    for kind, texts in TEXTS.items():
        for text in texts:
            for piece in _PIECES:
                at = chooser.randrange(len(text))
                yield {kind: text[:at] + piece + text[at:]}
                yield {kind: text[:at] + piece}
    fields = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
    yield from ({field: value} for field in fields for value in VALUES)
    for field in ("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern"):
        yield from ({"json": {"type": "object"}, field: value} for value in VALUES)
    yield from ({"choice": [value]} for value in VALUES)
