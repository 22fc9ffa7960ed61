"""reasoning_config: what opens thoughts, and what ends them when their budget is spent."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from quire.errors import InvalidOption, NotSupported
from quire.options.checks import mapping
from quire.params.reasoning import TAGS, ReasoningConfig
from quire.params.rules import fail

_FIELDS = ("reasoning_start_str", "reasoning_end_str")


def reasoning_config(name: str, value: Any) -> ReasoningConfig | None:
    """{"reasoning_start_str": "<think>", "reasoning_end_str": "Enough.</think>"}, or the same as a
    ReasoningConfig; one that is empty says nothing."""
    given = asdict(value) if isinstance(value, ReasoningConfig) else mapping(name, value)
    given = {key: one for key, one in given.items() if one not in (None, "")}
    if given.pop("reasoning_parser", None) is not None:
        raise NotSupported(f"{name} with 'reasoning_parser': pass LLM(reasoning_parser=...).")
    if not set(given) <= {*_FIELDS} or not all(isinstance(one, str) for one in given.values()):
        fail(InvalidOption, name, f"a dict of strings, keys among {', '.join(_FIELDS)}", value)
    config = ReasoningConfig(**given)
    start, end = config.reasoning_start_str, config.reasoning_end_str
    closings = tuple(closing for opening, closing in TAGS if start in ("", opening))
    if not closings and not end:
        hint = "What begins so has no end that is known."
        fail(InvalidOption, name, "a dict with a reasoning_end_str, too", value, hint)
    if end and closings and not end.endswith(closings):
        rule = f"a dict whose reasoning_end_str ends with {closings[0]!r}"
        fail(InvalidOption, name, rule, value, "Else thoughts would go on behind it.")
    return config if given else None
