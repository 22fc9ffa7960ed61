"""The chat template of a Transformers tokenizer."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from quire.inputs.chat import read_template

# The type of a message, as scripts write it.
ChatCompletionMessageParam = ConversationMessage = dict[str, Any]


def resolve_chat_template(
    tokenizer: Any,
    chat_template: str | None = None,
    tools: list[dict[str, Any]] | None = None,
    *,
    model_config: Any = None,
) -> str | None:
    """The template text: the one given (or named), else the tokenizer's own, None without one.

    `model_config` is accepted because callers pass it; it is not needed.
    """
    if chat_template is None and getattr(tokenizer, "chat_template", None) is None:
        return None
    template: str = tokenizer.get_chat_template(chat_template, tools=tools)
    return template


def load_chat_template(chat_template: str | os.PathLike[str] | None) -> str | None:
    """The text of a template; read from a file if it names one."""
    if chat_template is None:
        return None
    return read_template(chat_template if isinstance(chat_template, str) else Path(chat_template))
