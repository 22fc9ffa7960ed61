"""structured_outputs_config: what an engine says of all structured outputs, and how it is read."""

from __future__ import annotations

from typing import Any

from quire.base.notes import warn
from quire.errors import InvalidOption, NotSupported
from quire.options.checks import mapping
from quire.params.rules import fail, show
from quire.params.structured import BACKEND, StructuredOutputsConfig

_FLAGS = ("disable_any_whitespace", "disable_additional_properties")
# What has a place of its own among the options.
_ELSEWHERE = ("reasoning_parser", "reasoning_parser_plugin")


def structured_outputs_config(name: str, value: Any) -> StructuredOutputsConfig | None:
    """{"disable_any_whitespace": True, "disable_additional_properties": True} and the like; an
    empty dict says nothing."""
    if isinstance(value, StructuredOutputsConfig):
        return value
    given = {key: one for key, one in mapping(name, value).items() if one not in (None, "")}
    flags = {key: given.pop(key) for key in _FLAGS if key in given}
    if not all(isinstance(one, bool) for one in flags.values()):
        fail(InvalidOption, name, f"a dict whose {' and '.join(flags)} are True or False", value)
    backend = given.pop("backend", "auto")
    if backend not in ("auto", BACKEND):
        why = f"{BACKEND} follows every grammar."
        warn(f"{name}={{'backend': {show(backend)}}} has no effect. {why}")
    if given.pop("disable_fallback", False):
        warn(
            f"{name}={{'disable_fallback': True}} has no effect. There is nothing to fall back on."
        )
    if given.pop("enable_in_reasoning", False) not in (True, False):
        fail(InvalidOption, name, "a dict whose enable_in_reasoning is True or False", value)
    for key in _ELSEWHERE:
        if key in given:
            raise NotSupported(f"{name} with {key!r} is not built: pass LLM({key}=...).")
    if given:
        known = ", ".join((*_FLAGS, "backend", "disable_fallback", "enable_in_reasoning"))
        fail(InvalidOption, name, f"a dict with keys among {known}", value)
    return StructuredOutputsConfig(**flags) if flags else None
