"""Whole messages: makes the blocks of an answer from the engine's output."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any, Literal, TypedDict

from quire.openai_api.asks import Asked
from quire.openai_api.bodies import call_id, finish_reason, parts_of
from quire.openai_api.outputs import Answer, Call, Output

Block = dict[str, Any]
StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
_REASONS: dict[str, StopReason] = {"length": "max_tokens", "tool_calls": "tool_use"}


class ThinkingTokens(TypedDict):
    thinking_tokens: int


class MessageUsage(TypedDict):
    """The number of prompt tokens is the sum of the first three."""

    input_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int
    output_tokens: int
    output_tokens_details: ThinkingTokens
    service_tier: Literal["standard", "batch"]


class MessageBody(TypedDict):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[Block]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage


class CountedTokens(TypedDict):
    input_tokens: int


def message_body(asked: Asked, output: Output, *, id: str, model: str) -> MessageBody:
    [answer] = output.answers
    text, reasoning, calls = parts_of(asked, answer)
    content = [thinking_block(reasoning)] if reasoning and asked.reasoning else []
    content += [text_block(text)] if text else []
    content += [call_block(call, id, i) for i, call in enumerate(calls)]
    reason, stop = stopped(answer, calls)
    return {
        **begun(asked, output, id=id, model=model),
        "content": content,
        "stop_reason": reason,
        "stop_sequence": stop,
    }


def begun(asked: Asked, output: Output, *, id: str, model: str) -> MessageBody:
    """A message without content yet; its usage counts the prompt."""
    return {
        "id": id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage_of(asked, output),
    }


def usage_of(asked: Asked, output: Output) -> MessageUsage:
    return {
        "input_tokens": output.prompt_tokens - output.cached_tokens,
        "cache_read_input_tokens": output.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": output.output_tokens,
        "output_tokens_details": {"thinking_tokens": output.reasoning_tokens},
        "service_tier": "batch" if asked.is_batch else "standard",
    }


def stopped(answer: Answer, calls: tuple[Call, ...]) -> tuple[StopReason, str | None]:
    """Why an answer ended, and the text that ended it, if one did."""
    reason = finish_reason(answer, calls)
    if reason == "stop" and isinstance(answer.stop_reason, str):
        return "stop_sequence", answer.stop_reason
    return _REASONS.get(reason, "end_turn"), None


def thinking_block(text: str) -> Block:
    return {"type": "thinking", "thinking": text, "signature": signature(text)}


def text_block(text: str) -> Block:
    """A text block without the field `citations`: some clients refuse null there."""
    return {"type": "text", "text": text}


def call_block(call: Call, message_id: str, i: int) -> Block:
    """A tool call with its arguments parsed; they are a JSON object."""
    return {**open_call(call, message_id, i), "input": json.loads(call.arguments)}


def open_call(call: Call, message_id: str, i: int) -> Block:
    """A tool call without its arguments, as it begins in a stream."""
    id = call_id(message_id, 0, i)
    return {
        "type": "tool_use",
        "id": id,
        "name": call.name,
        "input": {},
        "caller": {"type": "direct"},
    }


def signature(thoughts: str) -> str:
    """A signature for thoughts, since some clients send back only thoughts with one. It is never
    checked."""
    digest = hashlib.sha256(thoughts.encode("utf-8", "replace")).digest()
    return base64.b64encode(digest).decode("ascii")
