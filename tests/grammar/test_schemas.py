"""Whatever a walk over the masks of a schema writes is valid under jsonschema."""

from __future__ import annotations

import datetime
import importlib
import json
from typing import Any

import pytest

from quire.errors import InvalidGrammar
from quire.grammar.compiler import GrammarCompiler
from quire.params.structured import StructuredOutputsParams
from tests.grammar.schemas import FAMILIES, Schema, closed, corpus
from tests.grammar.walking import Walker

jsonschema = importlib.import_module("jsonschema")


def judge(schema: Schema) -> Any:
    validator = jsonschema.Draft202012Validator
    validator.check_schema(schema)
    return validator(schema, format_checker=validator.FORMAT_CHECKER)


def test_the_corpus_is_large_varied_and_the_same_each_time() -> None:
    first, again = corpus(), corpus()
    assert first == again
    assert corpus(60) == first[:60]
    assert len(first) >= 500
    assert len({json.dumps(schema) for _, schema in first}) == len(first)
    assert len(FAMILIES) >= 25


@pytest.mark.parametrize("family", range(len(FAMILIES)), ids=lambda i: FAMILIES[i].__name__)
def test_what_is_written_is_valid(
    family: int, compiler: GrammarCompiler, walker: Walker, long_mode: bool
) -> None:
    schemas = corpus()[family :: len(FAMILIES)]
    finished = tried = 0
    for name, schema in schemas if long_mode else schemas[:3]:
        grammar = compiler.compile(StructuredOutputsParams(json=schema))
        valid = judge(schema)
        for seed in range(4):
            walk = walker.walk(grammar.matcher(), seed, forcing=seed % 2 == 1)
            tried += 1
            if walk.ended:
                finished += 1
                errors = [e.message for e in valid.iter_errors(json.loads(walk.text))]
                assert errors == [], f"{name} wrote {walk.text!r}"
    assert finished >= tried * 0.7, f"{finished} of {tried} walks came to an end"


def test_white_space_is_bounded_and_can_be_forbidden(
    compiler: GrammarCompiler, walker: Walker
) -> None:
    schema = closed({"a": {"const": 1}})
    tight = compiler.compile(StructuredOutputsParams(json=schema, disable_any_whitespace=True))
    assert {walker.walk(tight.matcher(), seed).text for seed in range(20)} == {'{"a":1}'}
    loose = compiler.compile(StructuredOutputsParams(json=schema))
    texts = {walker.walk(loose.matcher(), seed).text for seed in range(50)}
    assert len(texts) > 3
    assert max(map(len, texts)) < 8 + 5 * 44
    own = StructuredOutputsParams(json=schema, whitespace_pattern="_{1,2}")
    texts = {walker.walk(compiler.compile(own).matcher(), seed).text for seed in range(50)}
    assert any("_" in text for text in texts)
    assert all(text.replace("_", "") == '{"a":1}' for text in texts)


def test_additional_properties_can_be_turned_off(compiler: GrammarCompiler, walker: Walker) -> None:
    schema: Schema = {"type": "object", "properties": {"a": {"type": "object", "properties": {}}}}
    schema["properties"]["a"]["properties"]["b"] = {"const": 1}
    params = StructuredOutputsParams(json=schema, disable_additional_properties=True)
    for seed in range(30):
        found = json.loads(walker.walk(compiler.compile(params).matcher(), seed).text)
        assert set(found) <= {"a"}
        assert set(found.get("a", {})) <= {"b"}


def test_what_never_ends_is_left_out_where_it_may_be(
    compiler: GrammarCompiler, walker: Walker
) -> None:
    chain = {"type": "object", "properties": {"n": {"$ref": "#/$defs/N"}}, "required": ["n"]}
    for endless in (chain, {"$ref": "#/$defs/N"}):
        schema: Schema = closed({"a": {"const": 1}})
        schema |= {"$defs": {"N": endless}}
        schema["properties"]["n"] = {"anyOf": [{"$ref": "#/$defs/N"}, {"$ref": "#/$defs/N"}]}
        grammar = compiler.compile(
            StructuredOutputsParams(json=schema, disable_any_whitespace=True)
        )
        assert {walker.walk(grammar.matcher(), seed).text for seed in range(20)} == {'{"a":1}'}


@pytest.mark.parametrize("pattern", ["-02-29$", "^000", "^[0-9]+00-02-2[89]$"])
def test_every_date_exists(pattern: str, compiler: GrammarCompiler, walker: Walker) -> None:
    for suffix, form in (("$", "date"), ("T", "date-time")):
        said = {"type": "string", "format": form, "pattern": pattern.replace("$", suffix)}
        grammar = compiler.compile(StructuredOutputsParams(json=said))
        for seed in range(12):
            found = walker.walk(grammar.matcher(), seed)
            assert not found.ended or datetime.datetime.fromisoformat(json.loads(found.text)[:10])


def test_no_minute_has_61_seconds(compiler: GrammarCompiler) -> None:
    for form in ("time", "date-time"):
        said = {"type": "string", "format": form, "pattern": ":[0-9]{2}:6"}
        with pytest.raises(InvalidGrammar, match="unsatisfiable"):
            compiler.compile(StructuredOutputsParams(json=said))


def test_a_schema_may_be_text_or_a_dict_and_is_not_changed(
    compiler: GrammarCompiler, walker: Walker
) -> None:
    schema = {"type": "string", "pattern": "^\\d$", "format": "password", "uniqueItems": False}
    before = json.dumps(schema)
    as_dict = compiler.compile(StructuredOutputsParams(json=schema))
    as_text = compiler.compile(StructuredOutputsParams(json=before))
    assert json.dumps(schema) == before
    assert as_dict is as_text
    assert json.loads(walker.walk(as_dict.matcher(), 0).text).isdigit()


def test_any_json_object_is_an_object(compiler: GrammarCompiler, walker: Walker) -> None:
    grammar = compiler.compile(StructuredOutputsParams(json_object=True))
    walks = [walker.walk(grammar.matcher(), seed) for seed in range(20)]
    found = [json.loads(walk.text) for walk in walks if walk.ended]
    assert len(found) > 10
    assert all(isinstance(value, dict) for value in found)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"properties": {"x": {"not": {}}}}, "unsupported keyword 'not' at $.properties.x"),
        ({"type": "array", "uniqueItems": True}, "unsupported keyword 'uniqueItems' at $:"),
        ({"if": {}, "then": {"type": "string"}}, "unsupported keyword 'if' at $"),
        ({"items": {"contains": {"const": 1}}}, "unsupported keyword 'contains' at $.items"),
        ({"type": "string", "format": "iri"}, "keyword 'format' at $: 'iri'"),
        ({"properties": {"a b": {"type": "strin"}}}, """'type' at $.properties["a b"]"""),
        ({"type": "integer", "minimum": "a"}, "keyword 'minimum' at $: expected a number"),
        ({"type": "string", "minLength": -1}, "keyword 'minLength' at $: expected a positive"),
        ({"anyOf": [{"enum": "a"}]}, "keyword 'enum' at $.anyOf[0]: it must be a array"),
        ({"properties": {"p": 5}}, "invalid schema at $.p: expected an object"),
        ({"items": {"$ref": "#/nope"}}, "keyword '$ref' at $.items: nothing is found at '/nope'"),
        ({"$ref": "http://example.org/x"}, "keyword '$ref' at $: nothing is found"),
        ({"items": {"type": "string", "pattern": "(?=a)"}}, "'pattern' at $.items: look-around"),
        ({"items": {"type": "string", "pattern": r"\ba"}}, r"'pattern' at $.items: '\b' and"),
        ({"items": {"type": "string", "pattern": "a^b"}}, "'pattern' at $.items: '^' and '$'"),
        ({"type": "number", "maximum": 1e30}, "'maximum' at $: bounds are followed up to 18"),
        ({"items": {"$ref": "#nope"}}, "keyword '$ref' at $.items: nothing is found at 'nope'"),
        ({"items": {"type": "string", "pattern": "a++"}}, "($.items.pattern)"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "keyword 'oneOf' at $"),
        ({"patternProperties": {"^a": {}, "^ab": {}}}, "keyword 'patternProperties' at $"),
        ({"type": "integer", "multipleOf": 0}, "keyword 'multipleOf' at $"),
        (
            {"type": "object", "properties": {"a": {}}, "minProperties": 3},
            "'maxProperties' at $: only where all named properties are required",
        ),
    ],
)
def test_an_unsupported_schema_names_its_keyword_and_path(
    schema: Schema, message: str, compiler: GrammarCompiler
) -> None:
    with pytest.raises(InvalidGrammar) as caught:
        compiler.compile(StructuredOutputsParams(json=schema))
    assert message in str(caught.value)
    assert caught.value.parameter == "json"


UPSIDE_DOWN = {"type": "integer", "minimum": 5, "maximum": 3}


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (UPSIDE_DOWN, "unsatisfiable schema at $: minimum (5) is greater than maximum (3)"),
        (
            {"type": "object", "properties": {"a": {}, "b": UPSIDE_DOWN}, "required": ["b"]},
            "unsatisfiable schema at $.properties.b: minimum (5) is greater than maximum (3)",
        ),
        (
            {"type": "array", "minItems": 1, "items": {"anyOf": [UPSIDE_DOWN, UPSIDE_DOWN]}},
            "unsatisfiable schema at $.items.anyOf[0]: minimum (5)",
        ),
        ({"allOf": [{"type": "string"}, {"type": "null"}]}, "at $: incompatible types"),
        ({"type": "string", "pattern": "^a$", "minLength": 2}, "unsatisfiable schema at $"),
        ({"enum": []}, "unsatisfiable schema at $"),
        ({"$ref": "#"}, "unsatisfiable schema: what $ref at $ requires"),
        (
            {
                "$defs": {
                    "a": {
                        "type": "object",
                        "properties": {"n": {"$ref": "#/$defs/a"}},
                        "required": ["n"],
                    }
                },
                "$ref": "#/$defs/a",
            },
            "$ref at $.$defs.a requires holds another of itself without end",
        ),
    ],
)
def test_an_unsatisfiable_schema_says_where_and_why(
    schema: Schema, message: str, compiler: GrammarCompiler
) -> None:
    with pytest.raises(InvalidGrammar) as caught:
        compiler.compile(StructuredOutputsParams(json=schema))
    assert message in str(caught.value)
    assert len(str(caught.value)) < 600


def test_an_optional_property_that_cannot_be_is_left_out(
    compiler: GrammarCompiler, walker: Walker
) -> None:
    schema = {"type": "object", "properties": {"a": UPSIDE_DOWN}, "additionalProperties": False}
    grammar = compiler.compile(StructuredOutputsParams(json=schema))
    texts = {walker.walk(grammar.matcher(), seed).text for seed in range(5)}
    assert all(json.loads(text) == {} for text in texts)


def test_options_of_llguidance_inside_a_schema_have_no_effect(compiler: GrammarCompiler) -> None:
    schema = {"x-guidance": {"lenient": True}, "type": "array", "uniqueItems": True}
    with pytest.raises(InvalidGrammar, match="uniqueItems"):
        compiler.compile(StructuredOutputsParams(json=schema))


@pytest.mark.parametrize("schema", ["[1]", "5", '"text"', "false", '{"a": 1e999'])
def test_what_is_no_schema_is_refused(schema: str, compiler: GrammarCompiler) -> None:
    params = StructuredOutputsParams(json="{}x"[:2])
    params.json = schema
    with pytest.raises(InvalidGrammar):
        compiler.compile(params)
