"""OpenAI batch files: what lines ask for, what comes back, and what a bad line costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quire.jobs.batch import BatchAsking
from quire.jobs.input.rows import BadRow
from quire.openai_api.asks import read_body
from quire.openai_api.bodies import text_parts
from quire.openai_api.fields import CHAT, COMPLETIONS, TABLE
from quire.openai_api.outputs import Call
from quire.openai_api.params import _SAME
from tests.jobs.driving import command, read_lines, run


def line(custom_id: Any, body: Any, url: str = CHAT, **more: Any) -> str:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body, **more})


FUNCTION = {"type": "function", "function": {"name": "f"}}
SCHEMA = {"type": "json_schema", "json_schema": {"schema": {"type": "null"}}}


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "gpt-x", "messages": [{"role": "user", "content": text}], **more}


def batch(source: Path, output: Path, *more: object) -> Any:
    return run(command("batch", source, "-o", output, "-m", "fake:chat=1", "--quiet", *more))


def told_of(error: dict[str, Any]) -> tuple[int | None, str | None]:
    """The status and the code of a line of the error file; a line that was never a request has no
    status."""
    if error["response"] is None:
        assert set(error["error"]) == {"code", "message"}
        return None, error["error"]["code"]
    assert error["error"] is None and error["response"]["request_id"].startswith("req_")
    body = error["response"]["body"]["error"]
    assert set(body) == {"message", "type", "param", "code"} and body["message"]
    return error["response"]["status_code"], body["code"]


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
    usage = answers[3]["response"]["body"]["usage"]
    told = [usage[f"{kind}_tokens"] for kind in ("prompt", "completion", "total")]
    assert told == [3, 16, 19]
    errors = read_lines(tmp_path / "out.errors.jsonl")
    assert all(set(e) == {"id", "custom_id", "response", "error"} for e in errors)
    assert [(e["custom_id"], *told_of(e)) for e in errors] == [
        (None, None, "malformed_row"),
        ("a", None, "duplicate_id"),
        ("d", 400, None),
        ("e", 400, None),
        ("g", 400, None),
        (None, None, "missing_id"),
        ("h", 400, "context_length_exceeded"),
        ("i", 400, None),
    ]
    assert errors[0]["error"]["message"].startswith("line 2: ")
    written = output.read_bytes()
    assert batch(source, output).returncode == 3
    output.unlink()
    assert batch(source, output).returncode == 3
    assert output.read_bytes() == written


def test_a_file_that_is_no_batch_is_refused(tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"prompt": "hello"}\n{"prompt": "again"}\n')
    done = batch(source, output)
    assert done.returncode == 2 and "'custom_id' has no text" in done.stderr
    assert "It has 'prompt'." in done.stderr and not output.exists()


@pytest.mark.parametrize(
    ("body", "params"),
    [
        (chat("x"), {"max_tokens": None}),
        (chat("x", max_tokens=7, top_p=0.5), {"max_tokens": 7, "top_p": 0.5}),
        (chat("x", stream=False, user="me"), {"max_tokens": None}),
        (chat("x", logit_bias={"5": 1}), {"max_tokens": None, "logit_bias": {"5": 1}}),
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
        (
            chat("x", response_format={"type": "json_object", "schema": {"type": "null"}}),
            {"max_tokens": None, "structured_outputs": {"json": {"type": "null"}}},
        ),
    ],
)
def test_what_a_body_means(body: dict[str, Any], params: dict[str, Any]) -> None:
    assert BatchAsking().ask({"url": CHAT, "body": body})["params"] == params


@pytest.mark.parametrize(
    "more",
    [
        *({"stream": True}, {"stream": 0}, {"stream": "no"}, {"stream": []}),
        *({"logprobs": True}, {"logprobs": 0}, {"top_logprobs": 3}, {"modalities": "text"}),
        *({"prompt_logprobs": 1}, {"return_token_ids": True}, {"functions": []}),
    ],
)
def test_what_is_not_built_is_refused_and_not_left_out(more: dict[str, Any]) -> None:
    with pytest.raises(BadRow) as refused:
        BatchAsking().ask({"url": CHAT, "body": chat("x", **more)})
    assert refused.value.kind == "not_supported" and next(iter(more)) in refused.value.message


@pytest.mark.parametrize("name", ["frobnicate", "prompt", "suffix", "best_of", "temprature"])
def test_a_field_that_no_body_has_is_refused(name: str) -> None:
    with pytest.raises(BadRow) as refused:
        BatchAsking().ask({"url": CHAT, "body": chat("x", **{name: 1})})
    assert refused.value.kind == "invalid_request" and name in refused.value.message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, 5) for name in ("model", "service_tier")),
        *((name, "x") for name in ("messages", "tools", "documents", "chat_template_kwargs")),
        *((name, "false") for name in ("add_generation_prompt", "continue_final_message")),
        *(("parallel_tool_calls", 1), ("stream_options", 1), ("response_format", "json_object")),
        *(("response_format", {"type": "xml"}), ("response_format", {"type": "json_schema"})),
        ("response_format", {"type": "json_object", "schema": "x"}),
    ],
)
def test_a_field_of_the_wrong_type_is_refused_by_its_name(name: str, value: Any) -> None:
    with pytest.raises(BadRow) as refused:
        BatchAsking().ask({"url": CHAT, "body": {**chat("x"), name: value}})
    assert refused.value.kind == "invalid_request" and name in refused.value.message


@pytest.mark.parametrize("url", [CHAT, COMPLETIONS])
def test_a_field_that_is_null_is_one_that_is_not_there(url: str) -> None:
    own = chat("x") if url == CHAT else {"prompt": "x"}
    asked = BatchAsking().ask({"url": url, "body": {**dict.fromkeys(TABLE[url]), **own}})
    assert asked == BatchAsking().ask({"url": url, "body": own})


def test_of_two_limits_the_newer_field_wins() -> None:
    body = chat("x", max_tokens=3, max_completion_tokens=4)
    assert BatchAsking().ask({"url": CHAT, "body": body})["params"]["max_tokens"] == 4
    body = chat("x", max_tokens=5, max_completion_tokens=None)
    assert BatchAsking().ask({"url": CHAT, "body": body})["params"]["max_tokens"] == 5


@pytest.mark.parametrize(
    "more",
    [
        {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
        {"response_format": {"type": "json_object"}, "guided_regex": "a"},
    ],
)
def test_two_fields_that_say_different_things_are_refused(more: dict[str, Any]) -> None:
    with pytest.raises(BadRow) as refused:
        BatchAsking().ask({"url": CHAT, "body": chat("x", **more)})
    assert all(name in refused.value.message for name in more)


WRONG_PARAMS: dict[str, tuple[Any, ...]] = {
    "structured_outputs": ('{"regex": "a"}', ["a"], 5, {}, {"rejex": "a"}, {"regex": 5}),
    "logit_bias": ([5, 1], "5", {"x": 1}, {"05": 1}, {"-1": 1}, {"9" * 5000: 1}, {"5": "a lot"}),
    **{name: ("x", [], {}, True) for name in ("temperature", "top_p", "presence_penalty")},
    **{name: ("x", [], {}, True) for name in ("frequency_penalty", "min_p", "repetition_penalty")},
    **{name: ("x", [], {}, 1.5, True, 9**99) for name in ("n", "seed", "min_tokens")},
    **{name: ("x", [], {}, 1.5, True) for name in ("max_tokens", "truncate_prompt_tokens")},
    "thinking_token_budget": ("x", [], {}, 1.5, True, -2),
    "top_k": ("x", [], {}, 1.5, True, -2),
    **{name: ("true", 1, []) for name in ("ignore_eos", "skip_special_tokens")},
    "include_stop_str_in_output": ("true", 1, []),
    "stop": (5, {}, [5], [[]], [""], "\ud800"),
    "bad_words": ("x", 5, [5], [""]),
    **{name: ("x", 5, ["x"], [-1], [2**40]) for name in ("stop_token_ids", "allowed_token_ids")},
}


def test_every_parameter_is_honoured_or_refused_and_never_left_out(tmp_path: Path) -> None:
    """The real engine's own checks, each as an error of its line and of no other."""
    wrong = [(name, value) for name, values in WRONG_PARAMS.items() for value in values]
    assert {name for name, _ in wrong} >= {*_SAME} - {"spaces_between_special_tokens"}
    lines = [
        line(f"{i}", chat("hello", **{"max_tokens": 2, name: value}))
        for i, (name, value) in enumerate(wrong)
    ]
    right = chat("hello", max_tokens=2, temperature=0, logit_bias={"300": 1e20})
    (tmp_path / "in.jsonl").write_text("\n".join([*lines, line("right", right)]) + "\n")
    done = batch(tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    assert done.returncode == 3, done.stderr
    errors = read_lines(tmp_path / "out.errors.jsonl")
    assert [int(e["custom_id"]) for e in errors] == list(range(len(wrong)))
    for error in errors:
        name, _ = wrong[int(error["custom_id"])]
        assert told_of(error) == (400, None)
        message = error["response"]["body"]["error"]["message"]
        assert name in message or name == "structured_outputs"
    assert [a["custom_id"] for a in read_lines(tmp_path / "out.jsonl")] == ["right"]


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "f", "arguments": {"x": %s}}</tool_call>' % ("9" * 5000),
        '<tool_call>{"name": "f", "arguments": {"x": NaN}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"x": %s}}</tool_call>' % ("[" * 5000 + "]" * 5000),
        "[f(x=%s)]" % ("9" * 5000),
        "[f(x=1e999)]",
        "[f(x=%s)]" % ("[" * 3000 + "]" * 3000),
    ],
)
def test_an_answer_that_is_no_call_after_all_stays_text(text: str) -> None:
    asked = read_body(CHAT, chat("x", tools=[FUNCTION]))
    assert text_parts(asked, text) == (text, None, ())


def test_tool_calls_are_taken_out_of_the_text() -> None:
    text = 'So: <tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'
    asked = read_body(CHAT, chat("x", tools=[FUNCTION]))
    assert text_parts(asked, text) == ("So:", None, (Call("f", '{"x": 1}'),))
    assert text_parts(read_body(CHAT, chat("x")), text) == (text, None, ())
