"""What the engine's process says, read into types: one JSON object per line."""

from __future__ import annotations

from typing import Any, TypedDict

import msgspec

from quire.openai_api.outputs import Output


class Message(msgspec.Struct):
    """Any of them; `kind` says which fields it has (child/__init__.py)."""

    kind: str
    id: int = -1
    rows: list[tuple[int, Output]] = msgspec.field(default_factory=list)
    error_type: str = ""
    error: str = ""
    param: str | None = None
    value: Any = None
    facts: dict[str, Any] = msgspec.field(default_factory=dict)  # of ready and metrics


class Tokenized(TypedDict):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Detokenized(TypedDict):
    prompt: str


class TokenizerInfo(TypedDict):
    """Each special token is there under its own name, too."""

    vocab_size: int
    max_model_len: int
    special_tokens: dict[str, Any]
    eos_token_ids: list[int]
    chat_template: str | None


decode = msgspec.json.Decoder(Message).decode
