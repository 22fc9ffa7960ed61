"""Structural tags: free text, in which what begins like a call must become one."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from quire.errors import InvalidGrammar
from quire.grammar.compiler import GrammarCompiler
from quire.inputs.tokenizer import Tokenizer
from quire.params.structured import StructuredOutputsParams
from tests.grammar.schemas import closed
from tests.grammar.walking import Walker, allowed_ids

NUMBER = {"type": "integer", "minimum": 0, "maximum": 9}
TAG = {
    "type": "tag",
    "begin": "<f=add>",
    "content": {"type": "json_schema", "json_schema": closed({"a": NUMBER})},
    "end": "</f>",
}
SUB = {**TAG, "begin": "<f=sub>"}


def compiled(compiler: GrammarCompiler, tag: dict[str, Any]) -> Any:
    return compiler.compile(StructuredOutputsParams(structural_tag=json.dumps(tag)))


def follow(grammar: Any, text: str, tokenizer: Tokenizer) -> Any:
    """A matcher that was fed this text, byte by byte where need be; None if it is not allowed."""
    matcher = grammar.matcher()
    ids = tokenizer.encode(text, False).tolist()
    return matcher if all(matcher.accept(token) for token in ids) else None


@pytest.mark.parametrize("named", [{}, {"type": "structural_tag"}])
def test_the_older_form(
    compiler: GrammarCompiler, byte_bpe: Tokenizer, vocab_size: int, named: dict[str, Any]
) -> None:
    tag = {
        **named,
        "structures": [
            {"begin": "<f=add>", "schema": closed({"a": NUMBER}), "end": "</f>"},
            {"begin": "<f=sub>", "schema": closed({"b": NUMBER}), "end": "</f>"},
        ],
        "triggers": ["<f="],
    }
    grammar = compiled(compiler, tag)
    free = follow(grammar, "The quick (brown) fox", byte_bpe)
    assert free.is_complete
    assert len(allowed_ids(free, vocab_size)) > 500
    assert not follow(grammar, "The fox <f=", byte_bpe).is_complete
    assert follow(grammar, "The <f=mul", byte_bpe) is None
    whole = 'The <f=add>{"a": 3}</f> and <f=sub>{"b": 4}</f> end'
    assert follow(grammar, whole, byte_bpe).is_complete
    assert follow(grammar, 'x<f=add>{"b"', byte_bpe) is None


def test_a_format(compiler: GrammarCompiler, walker: Walker) -> None:
    tag = {
        "type": "structural_tag",
        "format": {
            "type": "sequence",
            "elements": [
                {"type": "const_string", "value": "Call: "},
                {"type": "or", "elements": [TAG, {"type": "regex", "pattern": "no(ne)?/x"}]},
                {"type": "const_string", "value": "."},
            ],
        },
    }
    grammar = compiled(compiler, tag)
    walks = [walker.walk(grammar.matcher(), seed) for seed in range(40)]
    assert all(walk.ended for walk in walks)
    form = r'Call: (<f=add>\{\s*"a"\s*:\s*\d\s*\}</f>|no(ne)?/x)\.'
    assert all(re.fullmatch(form, walk.text) for walk in walks)
    assert len({walk.text[6] for walk in walks}) == 2


def test_tags_with_a_separator(compiler: GrammarCompiler, walker: Walker) -> None:
    inner = {"type": "tags_with_separator", "tags": [TAG, SUB], "separator": "; "}
    for at_least_one in (False, True):
        tag = {"type": "structural_tag", "format": {**inner, "at_least_one": at_least_one}}
        grammar = compiled(compiler, tag)
        assert grammar.matcher().is_complete is not at_least_one
        call = r'<f=(add|sub)>\{\s*"a"\s*:\s*\d\s*\}</f>'
        for seed in range(10):
            walk = walker.walk(grammar.matcher(), seed)
            if walk.ended and walk.text:
                assert re.fullmatch(f"{call}(; {call})*", walk.text)


def test_triggered_tags_can_be_demanded_and_can_be_the_end(
    compiler: GrammarCompiler, byte_bpe: Tokenizer
) -> None:
    inner = {"type": "triggered_tags", "triggers": ["<f="], "tags": [TAG]}
    one = compiled(
        compiler,
        {
            "type": "structural_tag",
            "format": {**inner, "at_least_one": True, "stop_after_first": True},
        },
    )
    assert not one.matcher().is_complete
    done = follow(one, 'Well: <f=add>{"a": 1}</f>', byte_bpe)
    assert done.is_complete
    assert done.is_stopped


def test_a_trigger_that_is_a_token_is_asked_for_as_one(
    compiler: GrammarCompiler, byte_bpe: Tokenizer
) -> None:
    tag = {
        "structures": [
            {"begin": "<|im_start|>call", "schema": closed({"a": NUMBER}), "end": "<|im_end|>"}
        ],
        "triggers": ["<|im_start|>"],
    }
    grammar = compiled(compiler, tag)
    text = 'so <|im_start|>call{"a": 1}<|im_end|>'
    assert byte_bpe.backend.token_to_id("<|im_start|>") in byte_bpe.encode(text, False)
    assert follow(grammar, text, byte_bpe).is_complete
    assert follow(grammar, "so <|im_start|>cold", byte_bpe) is None


def free(end: str | list[str], begin: str = "<t>") -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": {"type": "any_text"}, "end": end}


def allows(compiler: GrammarCompiler, tokenizer: Tokenizer, tag: dict[str, Any], text: str) -> bool:
    """Whether the whole text fulfils the format."""
    grammar = compiled(compiler, {"type": "structural_tag", "format": tag})
    matcher = follow(grammar, text, tokenizer)
    return matcher is not None and matcher.is_complete


def test_free_text_ends_with_the_tag_that_it_is_in(
    compiler: GrammarCompiler, byte_bpe: Tokenizer
) -> None:
    def fits(tag: dict[str, Any], text: str) -> bool:
        return allows(compiler, byte_bpe, tag, text)

    then = {"type": "const_string", "value": "!"}
    tag = {"type": "sequence", "elements": [free("</t>"), then]}
    assert fits(tag, "<t>a < b </ t\n</t>!")
    assert fits(tag, "<t></t>!")
    assert not fits(tag, "<t>a</t>b</t>!")  # it ended at the first
    assert not fits(tag, "<t>a!")
    several = {"type": "sequence", "elements": [free(["</t>", "<end>"]), then]}
    assert fits(several, "<t>x</t>!")
    assert fits(several, "<t>x<end>!")
    assert not fits(several, "<t>x</u>!")
    # A tag without an end of its own ends with the one around it.
    inner = {"type": "sequence", "elements": [{"type": "const_string", "value": "1"}, free("")]}
    nested = {**free("</o>", "<o>"), "content": inner}
    assert fits(nested, "<o>1<t>text</o>")
    assert not fits(nested, "<o>1<t>text</o>more")
    assert fits(free(""), "<t>up to the end")
    assert fits({"type": "or", "elements": [free("</t>"), then]}, "<t>a</t>")


def test_free_text_may_end_with_a_token(compiler: GrammarCompiler, byte_bpe: Tokenizer) -> None:
    for end in ("<|im_end|>", "so<|im_end|>", "so<|im_end|>on"):
        assert allows(compiler, byte_bpe, free(end), f"<t>and so, so {end}")
        assert not allows(compiler, byte_bpe, free(end), "<t>and so on")
        assert not allows(compiler, byte_bpe, free(end), "<t>and<|im_start|>")
    assert not allows(compiler, byte_bpe, free("so<|im_end|>"), "<t>and<|im_end|>")


def test_triggered_tags_inside_a_tag(compiler: GrammarCompiler, byte_bpe: Tokenizer) -> None:
    calls = {"type": "triggered_tags", "triggers": ["<f="], "tags": [TAG]}
    tag = {**free("</t>"), "content": calls}
    assert allows(compiler, byte_bpe, tag, "<t>free text</t>")
    assert allows(compiler, byte_bpe, tag, '<t>so <f=add>{"a": 1}</f> and</t>')
    assert not allows(compiler, byte_bpe, tag, '<t>so <f=add>{"b": 1}</f> and</t>')
    assert not allows(compiler, byte_bpe, tag, '<t>a</t> <f=add>{"a": 1}</f>')
    once = {**tag, "content": {**calls, "stop_after_first": True}}
    assert allows(compiler, byte_bpe, once, '<t>so <f=add>{"a": 1}</f></t>')
    assert allows(compiler, byte_bpe, once, "<t>none</t>")
    assert not allows(compiler, byte_bpe, once, '<t><f=add>{"a": 1}</f> more</t>')


def test_a_tag_of_very_many_tokens(compiler: GrammarCompiler, byte_bpe: Tokenizer) -> None:
    text = "<s>" * 3_000
    assert allows(compiler, byte_bpe, {"type": "const_string", "value": text}, text)


@pytest.mark.parametrize(
    ("tag", "message"),
    [
        ("{", "does not read as JSON"),
        ("[1]", "$ must be an object"),
        ({}, "$.structures must be a list"),
        ({"structures": [1], "triggers": ["<"]}, "begin must be a text that begins with one of"),
        ({"structures": [{"begin": "x", "schema": {}, "end": ""}]}, "$.triggers must be a list"),
        (
            {"structures": [{"begin": "x", "schema": 5, "end": ""}], "triggers": ["x"]},
            "json_schema must be a JSON schema",
        ),
        ({"type": "structural_tag", "format": {"type": "xml"}}, "$.format.type must be one of"),
        (
            {
                "type": "structural_tag",
                "format": {"type": "sequence", "elements": [{"type": "any_text"}, TAG]},
            },
            "$.format.elements[0] must be the last element",
        ),
        (
            {
                "type": "structural_tag",
                "format": {"type": "tags_with_separator", "tags": [free("")], "separator": ","},
            },
            "$.format.tags[0].end must be a text",
        ),
        (
            {"type": "structural_tag", "format": {"type": "any_text", "excludes": ["x"]}},
            "$.format.excludes must be left out",
        ),
        (
            {"structures": [{"begin": "x", "schema": {"not": {}}, "end": ""}], "triggers": ["x"]},
            "not",
        ),
    ],
)
def test_a_broken_tag_says_what_is_wrong(
    tag: dict[str, Any] | str, message: str, compiler: GrammarCompiler
) -> None:
    text = tag if isinstance(tag, str) else json.dumps(tag)
    with pytest.raises(InvalidGrammar) as caught:
        compiler.compile(StructuredOutputsParams(structural_tag=text))
    assert message in str(caught.value)
