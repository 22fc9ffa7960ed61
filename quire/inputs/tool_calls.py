"""Tool calls in a model's text, as names and arguments.

Formats, each read by a scanner that goes over the text once:

  hermes    <tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>   (Hermes, Qwen)
  llama3    <|python_tag|>{"name": "f", "parameters": {"x": 1}}; {...}    (or without the tag)
  mistral   [TOOL_CALLS][{"name": "f", "arguments": {"x": 1}}]  or  [TOOL_CALLS]f[ARGS]{"x": 1}
  pythonic  [f(x=1), g(y="a")]                                            (Llama 4, Gemma)
  channels  <|channel|>commentary to=functions.f<|message|>{"x": 1}<|call|>   (gpt-oss)

What does not read as a call stays in the text as it is. Nothing is ever evaluated, no regex
backtracks, and no text is scanned twice, so a hostile answer costs time linear in its length.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from quire.errors import InvalidParams
from quire.inputs.channels import CHANNEL, is_in_channels, messages_of
from quire.inputs.pythonic import read_pythonic_calls
from quire.inputs.reasoning import split_reasoning
from quire.outputs import ToolCall
from quire.params.rules import fail

Format = Literal["auto", "none", "hermes", "llama3", "mistral", "pythonic", "channels"]

_HERMES, _HERMES_END = "<tool_call>", "</tool_call>"
_LLAMA3 = "<|python_tag|>"
_MISTRAL, _MISTRAL_ARGS = "[TOOL_CALLS]", "[ARGS]"
_PYTHONIC, _PYTHONIC_END = "<|python_start|>", "<|python_end|>"
# Left behind by models that end a call with a token of its own.
_ENDS = ("<|eom_id|>", "<|eot_id|>", "<|im_end|>", "</s>")

# One of them shows that an object is a call, and no answer in JSON that has a name.
_CALLS = {"parameters", "arguments", "function"}

_decode = json.JSONDecoder().raw_decode


@dataclass(frozen=True, slots=True)
class ParsedAnswer:
    """An answer in its parts; `content` is what is left of the text, "" if nothing is."""

    reasoning: str | None
    content: str
    tool_calls: tuple[ToolCall, ...] = ()


def parse_tool_calls(
    text: str, format: Format = "auto", *, began_in_prompt: bool = False, tag: str = ""
) -> ParsedAnswer:
    """The parts of an answer.

    'Let me see.<tool_call>{"name": "f", "arguments": {}}</tool_call>' has the content "Let me
    see." and one call. "auto" goes by the marks in the text; "none" splits off reasoning only.
    `began_in_prompt`: the prompt ended inside the reasoning. `tag`: what opens reasoning, if
    only that does.
    """
    if tag in ("", CHANNEL) and is_in_channels(text):
        return _read_channels(text, with_calls=format in ("auto", "channels"))
    reasoning, content = split_reasoning(text, began_in_prompt=began_in_prompt, tag=tag)
    chosen = _recognised(content) if format == "auto" else format
    if chosen in ("none", "channels"):
        return ParsedAnswer(reasoning, content)
    if chosen not in _READERS:
        known = ", ".join(("auto", "none", "channels", *_READERS))
        fail(InvalidParams, "format", f"one of {known}", format)
    rest, calls = _READERS[chosen](content)
    return ParsedAnswer(reasoning, rest.strip() if calls else content, tuple(calls))


def _read_channels(text: str, *, with_calls: bool) -> ParsedAnswer:
    """The messages of an answer by what they are for."""
    reasoning, content, calls = list[str](), list[str](), list[ToolCall]()
    for message in messages_of(text):
        if message.kind == "reasoning":
            reasoning.append(message.text.strip())
            continue
        arguments = message.text.strip() or "{}"
        is_call = with_calls and message.kind == "call"
        call = _call({"name": message.name, "arguments": arguments}) if is_call else None
        if call is None:
            content.append(message.text.strip())
        else:
            calls.append(call)
    thought = "\n".join(filter(None, reasoning)) if reasoning else None
    return ParsedAnswer(thought, "\n".join(filter(None, content)), tuple(calls))


def _recognised(text: str) -> str:
    for mark, name in (
        (_HERMES, "hermes"),
        (_MISTRAL, "mistral"),
        (_LLAMA3, "llama3"),
        (_PYTHONIC, "pythonic"),
    ):
        if mark in text:
            return name
    start = text.lstrip()[:1]
    return {"{": "llama3", "[": "pythonic"}.get(start, "none")


def _call(value: Any) -> ToolCall | None:
    """A call from its JSON; arguments may be JSON once more, as text."""
    if not isinstance(value, dict):
        return None
    inner = value.get("function", value)
    if not isinstance(inner, dict):
        return None
    name = inner.get("name")
    arguments = inner.get("arguments", inner.get("parameters", {}))
    if isinstance(arguments, str):
        read = _json_at(arguments, 0)
        arguments = read[0] if read is not None else None
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None
    return ToolCall(name, arguments)


def _json_at(text: str, start: int) -> tuple[Any, int] | None:
    """The JSON value that begins here or behind white space, and where it ends."""
    while text[start : start + 1].isspace():
        start += 1
    try:
        return _decode(text, start)
    except (ValueError, RecursionError):
        return None


def _read_hermes(text: str) -> tuple[str, list[ToolCall]]:
    """Between two tags stands one call; whatever it is, the search goes on behind it."""
    kept, calls, at = [], list[ToolCall](), 0
    while (start := text.find(_HERMES, at)) >= 0:
        inside = start + len(_HERMES)
        end = text.find(_HERMES_END, inside)
        stop = len(text) if end < 0 else end
        after = len(text) if end < 0 else end + len(_HERMES_END)
        read = _json_at(text[inside:stop], 0)
        call = _call(read[0]) if read is not None else None
        kept.append(text[at:start] if call else text[at:after])
        calls += [call] if call else []
        at = after
    return "".join([*kept, text[at:]]), calls


def _read_llama3(text: str) -> tuple[str, list[ToolCall]]:
    """Objects with a ";" between them, behind the tag or as the whole text."""
    before, tag, body = text.partition(_LLAMA3)
    if not tag:
        before, body = "", text
    calls, at = list[ToolCall](), 0
    while (read := _json_at(body, at)) is not None:
        call = _call(read[0])
        if call is None or not (tag or _CALLS & read[0].keys()):
            break
        calls.append(call)
        at = read[1]
        behind = at
        while body[behind : behind + 1].isspace():
            behind += 1
        if not body.startswith(";", behind):
            break
        at = behind + 1
    left = _without_end(body[at:])
    if not calls or (left and not tag):
        return text, []  # JSON with a text behind it is an answer, not a call
    return before + left, calls


def _read_mistral(text: str) -> tuple[str, list[ToolCall]]:
    """A list of calls behind the mark, or a name and its arguments behind each mark."""
    kept, calls, at = [], list[ToolCall](), 0
    while (start := text.find(_MISTRAL, at)) >= 0:
        inside = start + len(_MISTRAL)
        stop = text.find(_MISTRAL, inside)
        segment = text[inside : len(text) if stop < 0 else stop]
        found, end = _mistral_segment(segment)
        kept.append(text[at:start] if found else text[at:inside])
        calls += found
        at = inside + (end if found else 0)
    return _without_end("".join([*kept, text[at:]])), calls


def _mistral_segment(segment: str) -> tuple[list[ToolCall], int]:
    read = _json_at(segment, 0)
    if read is not None:
        values = read[0] if isinstance(read[0], list) else [read[0]]
        calls = [_call(value) for value in values]
        whole = [call for call in calls if call is not None]
        return (whole, read[1]) if len(whole) == len(calls) else ([], 0)
    brace = segment.find("{")
    name = segment[: max(brace, 0)].replace(_MISTRAL_ARGS, "").strip()
    read = _json_at(segment, brace) if brace >= 0 else None
    if read is None or not name or not isinstance(read[0], dict) or len(name.split()) > 1:
        return [], 0
    return [ToolCall(name, read[0])], read[1]


def _read_pythonic(text: str) -> tuple[str, list[ToolCall]]:
    """A list of calls, in its tags or as the whole text."""
    before, tag, body = text.partition(_PYTHONIC)
    if not tag:
        before, body = "", text
    inside, _, after = body.partition(_PYTHONIC_END) if tag else (_without_end(body), "", "")
    found = read_pythonic_calls(inside)
    if found is None:
        return text, []
    return before + _without_end(after), [ToolCall(name, arguments) for name, arguments in found]


def _without_end(text: str) -> str:
    stripped = text.strip()
    for end in _ENDS:
        stripped = stripped.removesuffix(end).rstrip()
    return stripped


_READERS: dict[str, Callable[[str], tuple[str, list[ToolCall]]]] = {
    "hermes": _read_hermes,
    "llama3": _read_llama3,
    "mistral": _read_mistral,
    "pythonic": _read_pythonic,
}
