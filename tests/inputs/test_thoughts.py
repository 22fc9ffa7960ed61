"""Thoughts before an answer that has a format."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from quire.grammar.compiler import GrammarCompiler
from quire.inputs.thoughts import after_thoughts, begins_in_format
from quire.inputs.tokenizer import Tokenizer
from quire.params.structured import StructuredOutputsParams
from tests.grammar.conftest import NAMED
from tests.grammar.test_structural_tag import follow
from tests.inputs.makers import train_byte_bpe

CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
ANSWER = '{"city": "Paris"}'


@pytest.fixture(scope="module")
def thinking() -> Tokenizer:
    """As Qwen's: both tags are tokens, and the template knows them."""
    backend = train_byte_bpe(digits=False)
    backend.add_tokens(["<think>", "</think>"])
    templates = {"default": TEMPLATE + "{% if not enable_thinking %}<think>\n\n</think>{% endif %}"}
    return Tokenizer(backend, special_tokens=NAMED, chat_templates=templates)


@pytest.fixture(scope="module")
def compiler(thinking: Tokenizer) -> Iterator[GrammarCompiler]:
    size = thinking.vocab_size
    made = GrammarCompiler(thinking, vocab_size=size, eos_ids=thinking.eos_ids, num_lexers=2)
    yield made
    made.close()


def wanted(**more: Any) -> StructuredOutputsParams:
    return StructuredOutputsParams(**more)


TAG = json.dumps({"type": "structural_tag", "format": {"type": "json_schema", "json_schema": CITY}})
FORMS = [{"json": CITY}, {"json": json.dumps(CITY)}, {"structural_tag": TAG}, {"json_object": True}]


@pytest.mark.parametrize("form", [*FORMS, {"regex": r'\{"city": "Paris"\}'}])
def test_thoughts_come_first_and_the_format_holds_after_them(
    form: dict[str, Any], thinking: Tokenizer, compiler: GrammarCompiler
) -> None:
    grammar = compiler.compile(after_thoughts(wanted(**form), "Where?", thinking))

    def allowed(text: str) -> bool:
        matcher = follow(grammar, text, thinking)
        return matcher is not None and matcher.is_complete

    for blank in ("", "\n", "\n\n"):
        assert allowed(f"<think>\nIn {{France}}, I think.\n</think>{blank}{ANSWER}")
    assert allowed(ANSWER)  # whoever has nothing to think about
    assert not allowed(f"In France: {ANSWER}")
    assert not allowed("<think>\nHm.\n</think>\n\nParis")
    assert not allowed("<think>\nHm.\n</think>")
    assert not allowed(f"<think>a</think><think>b</think>{ANSWER}")


def test_thoughts_that_the_prompt_opened_are_closed_first(
    thinking: Tokenizer, compiler: GrammarCompiler
) -> None:
    grammar = compiler.compile(after_thoughts(wanted(json=CITY), "Where?<think>\n", thinking))
    assert follow(grammar, f"In France.\n</think>\n\n{ANSWER}", thinking).is_complete
    assert not follow(grammar, ANSWER, thinking).is_complete


@pytest.mark.parametrize(
    ("form", "prompt", "tag"),
    [
        ({"choice": ["a", "b"]}, "Where?<think>\n", ""),
        ({"grammar": "root ::= [a-z]+"}, "Where?", ""),
        ({"json": CITY}, "Where?<think>\n\n</think>\n\n", ""),
        ({"json": CITY}, "Where?", "[THINK]"),
    ],
)
def test_what_has_no_place_for_thoughts_stays_as_it_is(
    form: dict[str, Any], prompt: str, tag: str, thinking: Tokenizer
) -> None:
    asked = wanted(**form)
    assert after_thoughts(asked, prompt, thinking, tag) is asked
    assert begins_in_format(asked)


def test_a_model_that_does_not_think_stays_as_it_is() -> None:
    plain = Tokenizer(train_byte_bpe(digits=False), special_tokens=NAMED)
    asked = wanted(json=CITY)
    assert after_thoughts(asked, "Where?", plain) is asked
