"""What the engine gave, as plain data: it crosses between processes, and bodies are made of it."""

from __future__ import annotations

import json
from collections.abc import Iterable

import msgspec

from quire.inputs.transcripts import Segment
from quire.outputs import ToolCall


class TokenScore(msgspec.Struct, frozen=True, omit_defaults=True):
    """A token, how likely it was, and the likeliest ones at its place: (id, text, logprob)."""

    token_id: int
    text: str
    logprob: float
    top: tuple[tuple[int, str, float], ...] = ()


class Call(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool call that the model wrote; its arguments are the JSON text of an object."""

    name: str
    arguments: str


def calls_of(read: Iterable[ToolCall]) -> tuple[Call, ...] | None:
    """Calls as they leave here; None where one holds what JSON has no word for, or too deep a
    nest: a model may write anything."""
    try:
        return tuple(
            Call(call.name, json.dumps(call.arguments, allow_nan=False, ensure_ascii=False))
            for call in read
        )
    except (ValueError, RecursionError):
        return None


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """One answer, or in a stream what is new of it. `content`, `reasoning` and `calls` are the
    parts of the whole text, there when it is finished; `text` is cut nowhere."""

    index: int
    text: str
    token_ids: tuple[int, ...] = ()
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: tuple[TokenScore, ...] | None = None
    content: str | None = None
    reasoning: str | None = None
    calls: tuple[Call, ...] = ()


class Pooled(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a pooling model says of a text: float32 numbers, lowest byte first, in this shape."""

    shape: tuple[int, ...]
    data: bytes


class Heard(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was said in a piece of a sound, from its beginning on."""

    segments: tuple[Segment, ...]
    language: str | None = None


class Output(msgspec.Struct, frozen=True, omit_defaults=True):
    """What came for one row. Of a row that streams, answers hold what is new."""

    answers: tuple[Answer, ...]
    finished: bool
    prompt_tokens: int = 0
    output_tokens: int = 0  # of all answers so far
    cached_tokens: int = 0
    reasoning_tokens: int = 0  # of those answers that are finished
    began_reasoning: bool = False  # the prompt itself opened the reasoning
    prompt: str | None = None  # where the row asks to have it back
    prompt_token_ids: tuple[int, ...] | None = None  # the same
    prompt_logprobs: tuple[TokenScore | None, ...] | None = None
    # Of one that is finished: seconds from the queue to the device, to the first token, to the end.
    timings: tuple[float | None, ...] = ()
    pooled: Pooled | None = None  # of a row that asks for numbers and not for text
    heard: Heard | None = None  # of a row that is a piece of a sound
