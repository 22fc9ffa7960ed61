"""Schemas as people write them, made by rule: the same ones each time, any number of them.

Each family is one kind of schema; `corpus(count)` takes the families in turn with seeds of their
own, so corpus(500)[:100] == corpus(100). All are valid under draft 2020-12, and all can be
followed.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

Schema = dict[str, Any]
Family = Callable[[random.Random], Schema]

NAMES = ["id", "name", "age", "email", "title", "tags", "price", "status", "city", "notes", "url"]
UNICODE = ["Straße", "名前", "città", "имя", "año", "naïve", "prénom", "الاسم", "🚀", "a b", 'q"t']
WORDS = ["red", "green", "blue", "open", "closed", "small", "large", "yes", "no", "n/a", "A-1"]


def scalar(rng: random.Random) -> Schema:
    return rng.choice(
        [
            {"type": "string", "maxLength": rng.randint(1, 12)},
            {"type": "integer", "minimum": 0, "maximum": rng.randint(1, 5000)},
            {"type": "number", "minimum": -5, "maximum": 99.5},
            {"type": "boolean"},
            {"type": "null"},
            {"enum": rng.sample(WORDS, rng.randint(1, 4))},
        ]
    )


def closed(properties: dict[str, Any], required: list[str] | None = None, **more: Any) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        "additionalProperties": False,
        **more,
    }


def flat_object(rng: random.Random) -> Schema:
    names = rng.sample(NAMES, rng.randint(1, 5))
    return closed({name: scalar(rng) for name in names})


def optional_properties(rng: random.Random) -> Schema:
    names = rng.sample(NAMES, rng.randint(2, 6))
    return closed({name: scalar(rng) for name in names}, rng.sample(names, rng.randint(0, 2)))


def nested_objects(rng: random.Random) -> Schema:
    schema = flat_object(rng)
    for _ in range(rng.randint(1, 4)):
        schema = closed({rng.choice(NAMES): schema, "kind": scalar(rng)})
    return schema


def bounded_array(rng: random.Random) -> Schema:
    low = rng.randint(0, 3)
    return {
        "type": "array",
        "items": scalar(rng),
        "minItems": low,
        "maxItems": low + rng.randint(0, 3),
    }


def array_of_objects(rng: random.Random) -> Schema:
    return {"type": "array", "items": flat_object(rng), "minItems": 1, "maxItems": 2}


def matrix(rng: random.Random) -> Schema:
    size = rng.randint(1, 3)
    row: Schema = {"type": "array", "items": {"type": "integer", "minimum": 0}}
    row["items"]["maximum"] = rng.randint(1, 99)
    row |= {"minItems": size, "maxItems": size}
    return {"type": "array", "items": row, "minItems": size, "maxItems": size}


def tuples(rng: random.Random) -> Schema:
    first = [scalar(rng) for _ in range(rng.randint(1, 3))]
    return {"type": "array", "prefixItems": first, "items": False, "minItems": len(first)}


def enums(rng: random.Random) -> Schema:
    values: list[Any] = [*rng.sample(WORDS, 2), rng.randint(-5, 5), None, True, 2.5, UNICODE[0]]
    return closed({"choice": {"enum": rng.sample(values, rng.randint(1, 4))}})


def constants(rng: random.Random) -> Schema:
    value = rng.choice(["v1", 7, -2.5, None, False, [1, "a"], {"a": 1, "b": [True]}, 'é\n\t"\\'])
    return closed({"version": {"const": value}, "ok": scalar(rng)})


def any_of(rng: random.Random) -> Schema:
    options = [scalar(rng), bounded_array(rng), flat_object(rng)]
    return closed({"value": {"anyOf": rng.sample(options, rng.randint(2, 3))}})


def one_of_types(rng: random.Random) -> Schema:
    word: Schema = {"type": "string", "maxLength": rng.randint(1, 12)}
    options = [word, {"type": "boolean"}, {"type": "null"}, bounded_array(rng)]
    return closed({"value": {"oneOf": rng.sample(options, 2)}})


def one_of_tagged(rng: random.Random) -> Schema:
    """Options that a property with its own const tells apart."""
    kinds = rng.sample(WORDS, rng.randint(2, 3))
    return {"oneOf": [closed({"kind": {"const": kind}, "of": scalar(rng)}) for kind in kinds]}


def all_of(rng: random.Random) -> Schema:
    left, right = rng.sample(NAMES, 2)
    parts = [
        {"type": "object", "properties": {name: scalar(rng)}, "required": [name]}
        for name in (left, right)
    ]
    return {"type": "object", "allOf": parts, "properties": {"end": {"const": 1}}}


def references(rng: random.Random) -> Schema:
    return {
        "$defs": {"item": flat_object(rng), "word": {"type": "string", "maxLength": 6}},
        **closed({"first": {"$ref": "#/$defs/item"}, "second": {"$ref": "#/$defs/word"}}),
    }


def linked_list(rng: random.Random) -> Schema:
    link = {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}
    return {
        "$defs": {"node": closed({"value": scalar(rng), "next": link})},
        "$ref": "#/$defs/node",
    }


def tree(rng: random.Random) -> Schema:
    leaves = {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": rng.randint(1, 2)}
    return {
        "$defs": {"tree": closed({"name": scalar(rng), "children": leaves}, ["name"])},
        "$ref": "#/$defs/tree",
    }


def patterns(rng: random.Random) -> Schema:
    pattern = rng.choice(
        [
            "^[A-Z]{2}-[0-9]{3}$",
            "^(foo|bar)+$",
            r"^\d{3}-\d{4}$",
            "^[a-z][a-z0-9_]{0,8}$",
            r"^\w+@\w+\.(com|org)$",
            "^#[0-9a-fA-F]{6}$",
            "^$|^x{1,4}$",
            "^[äöü]{1,3}$",
        ]
    )
    code = {"type": "string", "pattern": pattern, "maxLength": 40}
    return closed({rng.choice(NAMES): code, "code": code})


def formats(rng: random.Random) -> Schema:
    known = ["date", "time", "date-time", "uuid", "ipv4", "ipv6", "email", "hostname", "duration"]
    return closed({name: {"type": "string", "format": name} for name in rng.sample(known, 2)})


def integers(rng: random.Random) -> Schema:
    low = rng.randint(-2000, 2000)
    return closed(
        {
            "a": {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 300)},
            "b": {"type": "integer", "exclusiveMinimum": low, "exclusiveMaximum": low + 9},
            "c": {"type": "integer", "multipleOf": rng.choice([2, 3, 5, 10, 25])},
        }
    )


def numbers(rng: random.Random) -> Schema:
    low = rng.randint(-50, 50) / 4
    return closed(
        {
            "a": {"type": "number", "minimum": low, "maximum": low + 7.25},
            "b": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
        }
    )


def lengths(rng: random.Random) -> Schema:
    low = rng.randint(0, 6)
    text = {"type": "string", "minLength": low, "maxLength": low + rng.randint(0, 20)}
    return closed({"text": text})


def unicode_names(rng: random.Random) -> Schema:
    names = rng.sample(UNICODE, 3)
    return closed({name: {"enum": rng.sample(UNICODE, 2)} for name in names})


def typed_extras(rng: random.Random) -> Schema:
    return {
        "type": "object",
        "properties": {"id": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["id"],
        "additionalProperties": rng.choice(
            [{"type": "boolean"}, {"enum": rng.sample(WORDS, 2)}, bounded_array(rng)]
        ),
    }


def pattern_properties(rng: random.Random) -> Schema:
    return {
        "type": "object",
        "patternProperties": {"^x-[a-z]{1,4}$": scalar(rng)},
        "additionalProperties": False,
    }


def type_lists(rng: random.Random) -> Schema:
    types = ["string", "integer", "boolean", "null"]
    names = rng.sample(NAMES, 2)
    return closed({name: {"type": rng.sample(types, 2), "maxLength": 9} for name in names})


def pydantic_style(rng: random.Random) -> Schema:
    """As model_json_schema() writes it: titles, defaults, $defs, nullable by anyOf."""
    address = closed({"city": {"title": "City", "type": "string", "maxLength": 9}})
    person = closed(
        {
            "name": {"title": "Name", "type": "string", "maxLength": 12},
            "age": {
                "anyOf": [{"type": "integer", "minimum": 0, "maximum": 130}, {"type": "null"}],
                "default": None,
                "title": "Age",
            },
            "home": {"$ref": "#/$defs/Address", "description": "where the person lives"},
            "role": {"enum": rng.sample(WORDS, 3), "title": "Role", "type": "string"},
        },
        ["name", "home"],
    )
    return {**person, "$defs": {"Address": address}, "title": "Person"}


def tool_call(rng: random.Random) -> Schema:
    return closed(
        {
            "name": {"enum": ["get_weather", "search"]},
            "arguments": closed({"query": {"type": "string", "maxLength": 10}, "k": scalar(rng)}),
        }
    )


def free_json(rng: random.Random) -> Schema:
    """Schemas that leave nearly everything open."""
    maybe: list[Schema] = [{"type": "array", "maxItems": rng.randint(1, 9)}, {"type": "object"}]
    open_object: Schema = {"type": "object", "required": rng.sample(NAMES, 1)}
    either: Schema = {"type": ["object", "array"]}
    return rng.choice([*maybe, either, open_object, {"type": "object", "properties": {}}])


FAMILIES: tuple[Family, ...] = (
    *(flat_object, optional_properties, nested_objects, bounded_array, array_of_objects, matrix),
    *(tuples, enums, constants, any_of, one_of_types, one_of_tagged, all_of, references),
    *(linked_list, tree, patterns, formats, integers, numbers, lengths, unicode_names),
    *(typed_extras, pattern_properties, type_lists, pydantic_style, tool_call, free_json),
)


def corpus(count: int = 504) -> list[tuple[str, Schema]]:
    """(name, schema) pairs, all different; the name says which family and which of its seeds."""
    made: list[tuple[str, Schema]] = []
    seen: set[str] = set()
    seeds = [0] * len(FAMILIES)
    while len(made) < count:
        which = len(made) % len(FAMILIES)
        family = FAMILIES[which]
        # hash() of a str differs from run to run; the family's name as a seed does not.
        name = f"{family.__name__}-{seeds[which]}"
        seeds[which] += 1
        schema = family(random.Random(name))
        assert seeds[which] < 1000, f"{family.__name__} has no more schemas"
        if (text := json.dumps(schema)) not in seen:
            seen.add(text)
            made.append((name, schema))
    return made
