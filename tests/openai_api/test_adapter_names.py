"""A body that names a LoRA adapter as its model: its rows say so, and others do not."""

from __future__ import annotations

from typing import Any

import pytest

from quire.anthropic_api.messages import read_message
from quire.openai_api.asks import read_body
from quire.openai_api.fields import CHAT, COMPLETIONS, EMBEDDINGS
from quire.openai_api.pooling import read_pooling_body
from quire.openai_api.responses import read_response

NAMES = ("base", "polite")
HELLO = [{"role": "user", "content": "hello"}]


def rows_of(kind: str, model: str) -> Any:
    if kind == "chat":
        return read_body(CHAT, {"model": model, "messages": HELLO}, NAMES).rows
    if kind == "completions":
        return read_body(COMPLETIONS, {"model": model, "prompt": ["a", "b"]}, NAMES).rows
    if kind == "responses":
        return read_response({"model": model, "input": "hello"}, NAMES)[0].rows
    if kind == "messages":
        return read_message({"model": model, "messages": HELLO, "max_tokens": 5}, NAMES).rows
    return read_pooling_body(EMBEDDINGS, {"model": model, "input": ["a"]}, NAMES, ("embed",)).rows


@pytest.mark.parametrize("kind", ["chat", "completions", "responses", "messages", "embeddings"])
def test_every_row_names_the_adapter_of_its_body(kind: str) -> None:
    adapted, plain = rows_of(kind, "polite"), rows_of(kind, "base")
    assert [row["model"] for row in adapted] == ["polite"] * len(adapted)
    assert not any("model" in row for row in plain)
