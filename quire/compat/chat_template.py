"""The chat template of a Transformers tokenizer."""

from __future__ import annotations

from typing import Any


def resolve_chat_template(
    tokenizer: Any,
    chat_template: str | None = None,
    tools: list[dict[str, Any]] | None = None,
    *,
    model_config: Any = None,
) -> str | None:
    """The template text: the one given (or named), else the tokenizer's own, None without one.

    `model_config` is taken because callers pass it; the tokenizer knows all that is needed.
    """
    if chat_template is None and getattr(tokenizer, "chat_template", None) is None:
        return None
    template: str = tokenizer.get_chat_template(chat_template, tools=tools)
    return template
