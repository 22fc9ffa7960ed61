"""`quire chat`: ask a model from the terminal, once or in a conversation."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quire.cli.paths import named
from quire.cli.terminal import answer as say_answer
from quire.cli.terminal import say, say_json

if TYPE_CHECKING:
    from quire.llm import LLM
    from quire.outputs import RequestOutput

Messages = list[dict[str, str]]


def chat(
    model: Annotated[
        str, typer.Argument(help="An alias (smollm2), a path or a Hub id.", callback=named)
    ],
    question: Annotated[
        str | None, typer.Argument(help="What to ask; without it, stdin or a conversation.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="Instructions for the model.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 256,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token.")] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Ask a model a question."""
    from quire import LLM, SamplingParams

    talk = question is None and sys.stdin.isatty()
    if question is None and not talk:
        question = _piped()
    if not talk and not question:
        raise typer.BadParameter("it is empty; pass a text, or pipe one in", param_hint="QUESTION")
    params = SamplingParams(temperature=temperature, max_tokens=max_tokens)
    messages: Messages = [{"role": "system", "content": system}] if system else []
    with LLM(model) as llm:
        if talk:
            _converse(llm, messages, params)
        else:
            _answer(llm, [*messages, {"role": "user", "content": question or ""}], params, as_json)


def _piped() -> str:
    try:
        return sys.stdin.read().strip()
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"stdin is no text: {error}", param_hint="QUESTION") from None


def _converse(llm: LLM, messages: Messages, params: Any) -> None:
    say("An empty line ends the conversation.", err=True)
    while question := _read_line():
        messages = [*messages, {"role": "user", "content": question}]
        answer = _answer(llm, messages, params, as_json=False)
        messages = [*messages, {"role": "assistant", "content": answer}]


def _read_line() -> str:
    try:
        return input("> ").strip()
    except EOFError:
        return ""


def _answer(llm: LLM, messages: Messages, params: Any, as_json: bool) -> str:
    start = time.monotonic()
    [output] = llm.chat([messages], params, use_tqdm=False)
    seconds = time.monotonic() - start
    text = output.outputs[0].text
    if as_json:
        say_json(json.dumps(_facts(output, seconds), ensure_ascii=False))
    else:
        say_answer(text)
        say(_footer(output, seconds), err=True)
    return text


def _facts(output: RequestOutput, seconds: float) -> dict[str, object]:
    answer = output.outputs[0]
    return {
        "text": answer.text,
        "finish_reason": answer.finish_reason,
        "prompt_tokens": len(output.prompt_token_ids or ()),
        "output_tokens": len(answer.token_ids),
        "seconds": round(seconds, 3),
    }


def _footer(output: RequestOutput, seconds: float) -> str:
    answer = output.outputs[0]
    num_out = len(answer.token_ids)
    cut = ", cut at --max-tokens" if answer.finish_reason == "length" else ""
    speed = num_out / max(seconds, 1e-9)
    return f"[{len(output.prompt_token_ids or ())} in, {num_out} out, {speed:.0f} tok/s{cut}]"
