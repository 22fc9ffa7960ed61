"""Every keyword of JSON Schema is followed, said in other words, or refused by name: none that
changes the meaning is passed over."""

from __future__ import annotations

import importlib
import json
from typing import Any

import pytest

from quire.errors import InvalidGrammar
from quire.grammar.compiler import GrammarCompiler
from quire.params.structured import StructuredOutputsParams
from tests.grammar.walking import Walker

jsonschema = importlib.import_module("jsonschema")

WORD = {"type": "string", "maxLength": 3}
WHOLE = {"type": "integer", "minimum": 0, "maximum": 9}
DRAFTS = ["draft-04", "draft-06", "draft-07", "draft/2019-09", "draft/2020-12"]


def an_object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


CAT, DOG = an_object(kind={"const": "cat"}, lives=WHOLE), an_object(kind={"const": "dog"})
PETS = {
    "Cat": CAT,
    "Dog": DOG,
    "Pet": {"oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}]},
}
# Each with values that it refuses: a walk must never write one.
SAME_IN_OTHER_WORDS: list[tuple[dict[str, Any], list[Any]]] = [
    ({"$defs": {"w": {"$anchor": "word", **WORD}}, "$ref": "#word"}, [1, "abcd"]),
    ({"$defs": {"a/b": {"$id": "#w", **WORD}}, "$ref": "#w"}, [1, "abcd"]),
    ({"$defs": PETS, "$ref": "#/$defs/Pet"}, [{"kind": "cow"}, {"kind": "cat"}]),
    ({"$defs": PETS, "oneOf": [{"$ref": "#/$defs/Pet"}, {"type": "null"}]}, ["cat"]),
    ({"oneOf": [an_object(a=WHOLE), {"enum": ["a", None]}]}, [1, {}]),
    ({"oneOf": [WORD]}, [1]),
    ({"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": WHOLE}, [3]),
    (
        {"type": "object", "propertyNames": {"enum": ["x", "y"]}, "additionalProperties": WHOLE},
        [{"z": 1}, {"x": "a"}],
    ),
    (
        {
            "$defs": {"K": {"type": "string", "const": "x"}},
            "type": "object",
            "propertyNames": {"$ref": "#/$defs/K"},
            "required": ["x"],
        },
        [{"z": 1}, {}],
    ),
    (
        {
            "type": "object",
            "propertyNames": {"pattern": "^[ab]{1,2}$"},
            "additionalProperties": WHOLE,
            "minProperties": 1,
        },
        [{"z": 1}, {"a": "a"}, {}],
    ),
    ({**an_object(a=WHOLE), "additionalProperties": True, "unevaluatedProperties": False}, [{}]),
    (
        {"type": "object", "properties": {"a": WHOLE}, "unevaluatedProperties": False},
        [{"b": 1}],
    ),
    ({"type": "array", "prefixItems": [WHOLE], "unevaluatedItems": False}, [[1, 2]]),
    ({"$schema": "urn:own", **WHOLE}, [10, "a"]),
]


@pytest.mark.parametrize(
    ("schema", "wrong"), SAME_IN_OTHER_WORDS, ids=[json.dumps(s) for s, _ in SAME_IN_OTHER_WORDS]
)
def test_what_is_said_in_other_words_means_the_same(
    compiler: GrammarCompiler, walker: Walker, schema: dict[str, Any], wrong: list[Any]
) -> None:
    judge = jsonschema.Draft202012Validator(
        {key: value for key, value in schema.items() if key != "$schema"}
    )
    is_named = "#w" in json.dumps(schema)  # an anchor as draft 7 spells it, which the judge is not
    assert is_named or not any(map(judge.is_valid, wrong))
    grammar = compiler.compile(StructuredOutputsParams(json=schema))
    found = [walker.walk(grammar.matcher(), seed) for seed in range(12)]
    values = [json.loads(walk.text) for walk in found if walk.ended]
    assert len(values) > 3 and all(value not in wrong for value in values)
    assert is_named or all(map(judge.is_valid, values)), values


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize(
    ("keyword", "value"),
    [
        *(("not", WORD), ("if", {"minimum": 3}), ("then", WORD), ("else", WORD)),
        *(("contains", WORD), ("minContains", 1), ("maxContains", 1), ("uniqueItems", True)),
        *(("dependencies", {"a": ["b"]}), ("dependentRequired", {"a": ["b"]})),
        *(("dependentSchemas", {"a": {}}), ("propertyNames", {"maxLength": 3})),
        *(("$dynamicRef", "#a"), ("$recursiveRef", "#"), ("extends", WORD)),
        *(("divisibleBy", 2), ("disallow", "string"), ("required", True)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_no_keyword_is_passed_over(
    compiler: GrammarCompiler, draft: str, keyword: str, value: Any
) -> None:
    """Whatever version a schema says it is written in."""
    scheme = f"http://json-schema.org/{draft}/schema#"
    schema = {"$schema": scheme, "type": "object", "properties": {"a": {keyword: value, **WHOLE}}}
    with pytest.raises(InvalidGrammar) as caught:
        compiler.compile(StructuredOutputsParams(json=schema))
    assert f"keyword {keyword!r} at $.properties.a: " in str(caught.value)


def test_so_is_none_that_is_younger_than_the_version_named(
    compiler: GrammarCompiler, walker: Walker
) -> None:
    for draft, said in (("draft-04", {"const": 7}), ("draft-07", {"prefixItems": [{"const": 7}]})):
        scheme = f"http://json-schema.org/{draft}/schema#"
        schema = {"$schema": scheme, "minItems": 1, "type": ["integer", "array"], **said}
        grammar = compiler.compile(StructuredOutputsParams(json=schema))
        found = [walker.walk(grammar.matcher(), seed) for seed in range(6)]
        values = [json.loads(walk.text) for walk in found if walk.ended]
        assert all(value == 7 or isinstance(value, int) or value[0] == 7 for value in values)
        assert "const" not in said or set(values) == {7}


@pytest.mark.parametrize(
    "schema",
    [
        {"oneOf": [{"const": {"a": 1}}, {"const": {"a": 1}}]},
        {"oneOf": [{"type": "integer"}, {"const": 1.0}]},
        {"oneOf": [{"type": "object", "properties": {"a": {"const": name}}} for name in "ab"]},
    ],
    ids=json.dumps,
)
def test_options_that_may_both_hold_are_refused(
    compiler: GrammarCompiler, schema: dict[str, Any]
) -> None:
    with pytest.raises(InvalidGrammar, match=r"keyword 'oneOf' at \$"):
        compiler.compile(StructuredOutputsParams(json=schema))
