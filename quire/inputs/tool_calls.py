"""Tool calls in a model's text, as names and arguments.

Formats, each read by a scanner that goes over the text once: those of marked_calls.py, and

  llama3    <|python_tag|>{"name": "f", "parameters": {"x": 1}}; {...}    (or without the tag)
            [{"name": "f", "arguments": {"x": 1}}]     (xLAM; behind "functools" Phi-4-mini)
  mistral   [TOOL_CALLS][{"name": "f", "arguments": {"x": 1}}]  or  [TOOL_CALLS]f[ARGS]{"x": 1}
  pythonic  [f(x=1), g(y="a")]                                            (Llama 4, Gemma)
  channels  <|channel|>commentary to=functions.f<|message|>{"x": 1}<|call|>   (gpt-oss)

Text that is not a valid call stays in the text. Nothing is evaluated, no regex backtracks, and no
text is scanned twice, so even a hostile answer takes time linear in its length.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from quire.errors import InvalidParams
from quire.inputs.channels import CHANNEL, is_in_channels, messages_of
from quire.inputs.marked_calls import FORMATS, Offered, call_of, json_at, read_marked
from quire.inputs.pythonic import read_pythonic_calls
from quire.inputs.reasoning import split_reasoning
from quire.outputs import ToolCall
from quire.params.rules import fail

_LLAMA3 = "<|python_tag|>"
_MISTRAL, _MISTRAL_ID, _MISTRAL_ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
# Tokens with which some models end a call; they are removed.
_ENDS = ("<|eom_id|>", "<|eot_id|>", "<|im_end|>", "</s>")

# Keys that show that an object is a call, and not another JSON answer with a "name".
_CALLS = {"parameters", "arguments", "function"}

FUNCTOOLS = "functools["


@dataclass(frozen=True, slots=True)
class ParsedAnswer:
    """An answer in its parts; `content` is what is left of the text, "" if nothing is."""

    reasoning: str | None
    content: str
    tool_calls: tuple[ToolCall, ...] = ()


def parse_tool_calls(
    text: str,
    format: str = "auto",
    *,
    began_in_prompt: bool = False,
    tag: str = "",
    offered: Offered | None = None,
) -> ParsedAnswer:
    """The parts of an answer.

    'Let me see.<tool_call>{"name": "f", "arguments": {}}</tool_call>' has the content "Let me
    see." and one call. "auto" goes by the marks in the text; "none" splits off reasoning only.
    `began_in_prompt`: the prompt ended inside the reasoning. `tag`: what opens reasoning, if
    only that does. `offered`: what there is to call, if that is known.
    """
    if tag in ("", CHANNEL) and is_in_channels(text):
        return _read_channels(text, with_calls=format in ("auto", "channels"))
    reasoning, content = split_reasoning(text, began_in_prompt=began_in_prompt, tag=tag)
    chosen = _recognised(content) if format == "auto" else format
    if chosen in ("none", "channels"):
        return ParsedAnswer(reasoning, content)
    marks = FORMATS.get(chosen, ())
    if any(each.opening in content for each in marks):
        rest, calls = read_marked(content, marks, offered or {})
    elif chosen in _READERS:
        rest, calls = _READERS[chosen](content)
    elif marks:
        rest, calls = content, []
    else:
        known = ", ".join(("auto", "none", "channels", *sorted({*_READERS, *FORMATS})))
        fail(InvalidParams, "format", f"one of {known}", format)
    rest = _without_end(rest) if calls else content
    return ParsedAnswer(reasoning, rest, tuple(calls))


def _read_channels(text: str, *, with_calls: bool) -> ParsedAnswer:
    """The messages of an answer by what they are for."""
    reasoning, content, calls = list[str](), list[str](), list[ToolCall]()
    for message in messages_of(text):
        if message.kind == "reasoning":
            reasoning.append(message.text.strip())
            continue
        arguments = message.text.strip() or "{}"
        is_call = with_calls and message.kind == "call"
        call = call_of({"name": message.name, "arguments": arguments}) if is_call else None
        if call is None:
            content.append(message.text.strip())
        else:
            calls.append(call)
    thought = "\n".join(filter(None, reasoning)) if reasoning else None
    return ParsedAnswer(thought, "\n".join(filter(None, content)), tuple(calls))


def _recognised(text: str) -> str:
    """The format whose mark comes first; without any, what the text begins like."""
    found = _OPENING.search(text)
    if found is not None:
        return _FORMAT_OF[found[0]]
    body = text.lstrip()
    if body.startswith("["):
        return "llama3" if body[1:].lstrip().startswith("{") else "pythonic"
    return "llama3" if body.startswith(("{", FUNCTOOLS)) else "none"


def _read_llama3(text: str) -> tuple[str, list[ToolCall]]:
    """Objects with a ";" between them, or a list: behind the tag or as the whole text."""
    before, tag, body = text.partition(_LLAMA3)
    if not tag:
        before, body = "", text.lstrip()
        body = body[len(FUNCTOOLS) - 1 :] if body.startswith(FUNCTOOLS) else body
    calls, at, behind = list[ToolCall](), 0, 0
    while (read := json_at(body, behind)) is not None:
        values = read[0] if isinstance(read[0], list) else [read[0]]
        found = [call_of(value) for value in values if tag or _is_of_calls(value)]
        whole = [call for call in found if call is not None]
        if not values or len(whole) != len(values):
            break
        calls += whole
        at = read[1]
        behind = at
        while body[behind : behind + 1].isspace():
            behind += 1
        if not body.startswith(";", behind):
            break
        behind += 1
    left = _without_end(body[at:])
    if not calls or (left and not tag):
        return text, []  # JSON with a text behind it is an answer, not a call
    return before + left, calls


def _is_of_calls(value: Any) -> bool:
    return isinstance(value, dict) and not _CALLS.isdisjoint(value)


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
    read = json_at(segment, 0)
    if read is not None:
        values = read[0] if isinstance(read[0], list) else [read[0]]
        calls = [call_of(value) for value in values]
        whole = [call for call in calls if call is not None]
        return (whole, read[1]) if len(whole) == len(calls) else ([], 0)
    brace = segment.find("{")
    name = segment[: max(brace, 0)].removesuffix(_MISTRAL_ARGS).partition(_MISTRAL_ID)[0].strip()
    read = json_at(segment, brace) if brace >= 0 else None
    if read is None or not name or not isinstance(read[0], dict) or len(name.split()) > 1:
        return [], 0
    return [ToolCall(name, read[0])], read[1]


def _read_pythonic(text: str) -> tuple[str, list[ToolCall]]:
    """A list of calls as the whole text."""
    found = read_pythonic_calls(_without_end(text))
    if found is None:
        return text, []
    return "", [ToolCall(name, arguments) for name, arguments in found]


def _without_end(text: str) -> str:
    stripped = text.strip()
    for end in _ENDS:
        stripped = stripped.removesuffix(end).rstrip()
    return stripped


_READERS: dict[str, Callable[[str], tuple[str, list[ToolCall]]]] = {
    "llama3": _read_llama3,
    "mistral": _read_mistral,
    "pythonic": _read_pythonic,
}
_FORMAT_OF = {each.opening: name for name, some in FORMATS.items() for each in some}
_FORMAT_OF |= {_MISTRAL: "mistral", _LLAMA3: "llama3"}
# What opens a call within a text.
OPENINGS = tuple(_FORMAT_OF)
_OPENING = re.compile("|".join(map(re.escape, OPENINGS)))
