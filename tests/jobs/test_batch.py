"""OpenAI batch files: what lines ask for, what comes back, and what a bad line costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quire.jobs.batch import CHAT, COMPLETIONS, BatchAsking, _chat_choice
from quire.jobs.rows import BadRow
from tests.jobs.driving import command, read_lines, run


def line(custom_id: Any, body: Any, url: str = CHAT, **more: Any) -> str:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body, **more})


SCHEMA = {"type": "json_schema", "json_schema": {"schema": {"type": "null"}}}


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "gpt-x", "messages": [{"role": "user", "content": text}], **more}


def batch(source: Path, output: Path, *more: object) -> Any:
    return run(command("batch", source, "-o", output, "-m", "fake:chat=1", "--quiet", *more))


def test_lines_are_answered_in_order_and_bad_ones_go_to_the_error_file(tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [
        line("a", chat("hello", max_tokens=5, temperature=0)),
        "{ nonsense",
        line("b", {"prompt": "once", "max_tokens": 3, "temperature": 0}, COMPLETIONS),
        line("c", chat("hello", n=2, max_completion_tokens=2)),
        line("a", chat("again")),
        line("d", chat("x", best_friend=1)),
        line("e", chat("x", temperature=-1)),
        line("f", {"prompt": [5, 6, 7], "temperature": 0}, COMPLETIONS),
        line("g", chat("x"), "/v1/embeddings"),
        line(None, chat("x")),
        line("h", chat("x" * 1000)),
        line("i", "no body"),
    ]
    source.write_text("\n".join(lines) + "\n")
    done = batch(source, output)
    assert done.returncode == 3, done.stderr
    answers = read_lines(output)
    assert [a["custom_id"] for a in answers] == ["a", "b", "c", "f"]
    assert all(a["error"] is None and a["response"]["status_code"] == 200 for a in answers)
    first = answers[0]["response"]["body"]
    assert first["object"] == "chat.completion" and first["model"] == "gpt-x"
    [choice] = first["choices"]
    assert choice["message"]["role"] == "assistant" and choice["message"]["content"]
    assert choice["finish_reason"] == "length"
    assert first["usage"]["completion_tokens"] == 5
    assert len(answers[1]["response"]["body"]["choices"][0]["text"]) > 0
    texts = [c["message"]["content"] for c in answers[2]["response"]["body"]["choices"]]
    assert len(set(texts)) == 2
    assert answers[3]["response"]["body"]["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 16,
        "total_tokens": 19,
    }
    errors = read_lines(tmp_path / "out.errors.jsonl")
    assert [(e["custom_id"], e["error"]["line"], e["error"]["code"]) for e in errors] == [
        (None, 2, "malformed_row"),
        ("a", 5, "duplicate_id"),
        ("d", 6, "not_supported"),
        ("e", 7, "invalid_params"),
        ("g", 9, "invalid_request"),
        (None, 10, "missing_id"),
        ("h", 11, "prompt_too_long"),
        ("i", 12, "invalid_request"),
    ]
    written = output.read_bytes()
    assert batch(source, output).returncode == 3
    output.unlink()
    assert batch(source, output).returncode == 3
    assert output.read_bytes() == written


@pytest.mark.parametrize(
    ("body", "params"),
    [
        (chat("x"), {"max_tokens": None}),
        (chat("x", max_tokens=7, top_p=0.5), {"max_tokens": 7, "top_p": 0.5}),
        (chat("x", stream=False, user="me"), {"max_tokens": None}),
        (chat("x", logit_bias={"5": 1}), {"max_tokens": None, "logit_bias": {5: 1}}),
        (
            chat("x", response_format={"type": "json_object"}),
            {"max_tokens": None, "structured_outputs": {"json_object": True}},
        ),
        (
            chat(
                "x",
                response_format={
                    "type": "json_schema",
                    "json_schema": {"schema": {"type": "null"}},
                },
            ),
            {"max_tokens": None, "structured_outputs": {"json": {"type": "null"}}},
        ),
    ],
)
def test_what_a_body_means(body: dict[str, Any], params: dict[str, Any]) -> None:
    assert BatchAsking().ask({"url": CHAT, "body": body})["params"] == params


@pytest.mark.parametrize(
    "more",
    [{"stream": True}, {"logprobs": True}, {"tool_choice": "required"}, {"frobnicate": 1}],
)
def test_what_is_not_built_is_refused_and_not_left_out(more: dict[str, Any]) -> None:
    with pytest.raises(BadRow) as refused:
        BatchAsking().ask({"url": CHAT, "body": chat("x", **more)})
    assert refused.value.kind == "not_supported" and next(iter(more)) in refused.value.message


def test_tool_calls_are_taken_out_of_the_text() -> None:
    text = 'So: <tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'
    choice = _chat_choice(0, text, "stop", {"tools": [{"type": "function"}]})
    assert choice["finish_reason"] == "tool_calls"
    [call] = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "f", "arguments": '{"x": 1}'}
    assert _chat_choice(0, text, "stop", {})["message"]["content"] == text
