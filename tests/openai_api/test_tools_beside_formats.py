"""Tools and a format in one body: the answer is in that format, or it is calls."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quire.grammar.compiler import GrammarCompiler
from quire.inputs.tokenizer import Tokenizer
from quire.openai_api.answer_parts import AnswerParts
from quire.openai_api.asks import read_body
from quire.openai_api.bodies import parts_of
from quire.openai_api.errors import ApiError
from quire.openai_api.fields import CHAT
from quire.openai_api.outputs import Answer, Call, Output
from quire.params.structured import StructuredOutputsParams
from tests.grammar.conftest import byte_bpe, compiler, vocab_size  # noqa: F401  (fixtures)
from tests.grammar.test_structural_tag import follow

CITY = {
    "type": "object",
    "properties": {"name": {"enum": ["Paris", "f"]}},
    "required": ["name"],
}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": CITY}} for name in ("f", "g")
]
HERMES = '<tool_call>\n{"name": "f", "arguments": {"name": "Paris"}}\n</tool_call>'
BODY = {"messages": [{"role": "user", "content": "x"}], "tools": TOOLS}


def formatted(**more: Any) -> Any:
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}
    return read_body(CHAT, {**BODY, "response_format": form, **more})


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('{"name": "Paris"}', ()),
        ('{"name": "f"}', ()),
        (HERMES, ("f",)),
        (f"{HERMES}\n{HERMES.replace('f', 'g', 1)}", ("f", "g")),
        ('{"name": "g", "parameters": {"name": "Paris"}}', ("g",)),
    ],
)
def test_an_answer_is_in_the_format_or_is_calls(
    text: str,
    names: tuple[str, ...],
    compiler: GrammarCompiler,  # noqa: F811
    byte_bpe: Tokenizer,  # noqa: F811
) -> None:
    asked = formatted()
    [row] = asked.rows
    grammar = compiler.compile(StructuredOutputsParams(**row["params"]["structured_outputs"]))
    assert follow(grammar, text, byte_bpe).is_complete
    assert "tools" not in row, "the engine looks for no calls: the end of the text says it"
    content, _, calls = parts_of(asked, Answer(0, text, finish_reason="stop"))
    assert tuple(call.name for call in calls) == names and (content == "") is bool(names)
    parts = AnswerParts(asked, Output((), False))
    pieces = [Answer(0, one) for one in text[:-1]] + [Answer(0, text[-1], finish_reason="stop")]
    [shown] = [part for piece in pieces for part in parts.feed(piece)]
    assert (shown.content, shown.calls) == (content, calls)


def test_neither_is_not_written(
    compiler: GrammarCompiler,  # noqa: F811
    byte_bpe: Tokenizer,  # noqa: F811
) -> None:
    [row] = formatted(parallel_tool_calls=False).rows
    grammar = compiler.compile(StructuredOutputsParams(**row["params"]["structured_outputs"]))
    texts = ("Paris", '{"name": "Rome"}', '{"name": "f", "x"', "<tool_call>\n[", f"{HERMES}\n<")
    for text in (*texts, HERMES.replace("}}", ', "x"')):
        assert follow(grammar, text, byte_bpe) is None


def test_a_schema_of_an_answer_may_look_like_a_call() -> None:
    asked = read_body(CHAT, {**BODY, "response_format": {"type": "json_object"}})
    text = json.dumps({"name": "h", "parameters": {}})
    assert parts_of(asked, Answer(0, text, finish_reason="stop")) == (text, None, ())
    called = parts_of(asked, Answer(0, text.replace("h", "f"), finish_reason="stop"))
    assert called == ("", None, (Call("f", "{}"),))


def test_a_forced_call_is_in_no_format() -> None:
    forced = read_body(CHAT, {**BODY, "tool_choice": "required"})
    assert formatted(tool_choice="required").rows == forced.rows


@pytest.mark.parametrize("more", [{"guided_regex": "a"}, {"structured_outputs": {}}])
def test_other_formats_do_not_go_with_tools(more: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as caught:
        read_body(CHAT, {**BODY, **more})
    assert caught.value.status == 400 and caught.value.param == "tools"
