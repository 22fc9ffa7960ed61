"""`quire chat` with a model that answers at once: what goes in, what is printed where."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from quire.cli import main


@dataclass
class Answer:
    text: str
    token_ids: list[int]
    finish_reason: str = "stop"


@dataclass
class Output:
    outputs: list[Answer]
    prompt_token_ids: list[int] = field(default_factory=lambda: [1, 2, 3])


class EchoLLM:
    """Answers with the number of messages it was given."""

    asked: list[list[dict[str, str]]] = []

    def __init__(self, model: str) -> None:
        self.asked.clear()

    def __enter__(self) -> EchoLLM:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def chat(self, conversations: Any, params: Any, use_tqdm: bool) -> list[Output]:
        [messages] = conversations
        self.asked.append(messages)
        reason = "length" if params.max_tokens == 1 else "stop"
        return [Output([Answer(f"answer to {len(messages)}", [7, 8], reason)])]


@pytest.fixture(autouse=True)
def echo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.LLM", EchoLLM, raising=False)


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["chat", "any-model", *arguments])
    return int(ended.value.code or 0)


def test_the_answer_goes_to_stdout_and_the_rest_to_stderr(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("Hello?", "--system", "Be brief.") == 0
    printed = capsys.readouterr()
    assert printed.out == "answer to 2\n"
    assert "3 in, 2 out" in printed.err
    assert EchoLLM.asked[0] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello?"},
    ]


def test_an_answer_that_was_cut_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("Hello?", "--max-tokens", "1") == 0
    assert "cut at --max-tokens" in capsys.readouterr().err


def test_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("Hello?", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["text"] == "answer to 1"
    assert (facts["prompt_tokens"], facts["output_tokens"]) == (3, 2)


def test_a_question_may_be_piped_in(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("From a pipe?\n"))
    assert run() == 0
    assert EchoLLM.asked == [[{"role": "user", "content": "From a pipe?"}]]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff"), encoding="utf-8"))
    assert run() == 2
    assert "stdin is no text" in capsys.readouterr().err


def test_a_conversation_remembers_what_was_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = iter(["First?", "Second?", ""])
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines))
    assert run() == 0
    assert capsys.readouterr().out == "answer to 1\nanswer to 3\n"
    assert [m["content"] for m in EchoLLM.asked[1]] == ["First?", "answer to 1", "Second?"]


def test_bad_parameters_end_with_2_and_the_rule(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("Hello?", "--temperature", "-1") == 2
    assert "temperature" in capsys.readouterr().err
