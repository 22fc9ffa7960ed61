"""The engine's outputs as plain data: sent between processes, and used to make bodies."""

from __future__ import annotations

import json
from collections.abc import Iterable

import msgspec

from quire.inputs.transcripts import Segment
from quire.outputs import ToolCall


class TokenScore(msgspec.Struct, frozen=True, omit_defaults=True):
    """A token, its logprob, and the likeliest tokens at its position: (id, text, logprob).
    `offset`: where its text begins in its answer's, before a stop string cuts that; of completions
    only."""

    token_id: int
    text: str
    logprob: float
    top: tuple[tuple[int, str, float], ...] = ()
    offset: int = 0


class Call(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool call that the model wrote; its arguments are the JSON text of an object."""

    name: str
    arguments: str


def calls_of(read: Iterable[ToolCall]) -> tuple[Call, ...] | None:
    """The calls as plain data; None if one has values that JSON lacks, or nests too deeply: a model
    may write anything."""
    try:
        return tuple(
            Call(call.name, json.dumps(call.arguments, allow_nan=False, ensure_ascii=False))
            for call in read
        )
    except (ValueError, RecursionError):
        return None


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """One answer, or in a stream its new part. `content`, `reasoning` and `calls` are the parts of
    the whole text, set when it is finished; `text` is never split."""

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
    """The output of a pooling model for a text: little-endian float32 numbers of this shape."""

    shape: tuple[int, ...]
    data: bytes


class Heard(msgspec.Struct, frozen=True, omit_defaults=True):
    """The text of a piece of a sound; times count from its beginning."""

    segments: tuple[Segment, ...]
    language: str | None = None


class Output(msgspec.Struct, frozen=True, omit_defaults=True):
    """An output for one row. For a row that streams, answers have only the new part."""

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
    # When finished: seconds from the queue to the device, to the first token, to the end.
    timings: tuple[float | None, ...] = ()
    pooled: Pooled | None = None  # of a row that asks for numbers and not for text
    heard: Heard | None = None  # of a row that is a piece of a sound
