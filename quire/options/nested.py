"""Options whose values are dictionaries: their keys, and how they are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from functools import partial
from typing import Any

from quire.base.notes import warn
from quire.errors import InvalidOption, NotSupported
from quire.options.checks import mapping
from quire.params.reasoning import TAGS, ReasoningConfig
from quire.params.rules import fail
from quire.params.structured import StructuredOutputsConfig, read_backend

_FLAGS = ("disable_any_whitespace", "disable_additional_properties")
# Keys that are options of their own.
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
    behind = read_backend(InvalidOption, f"the backend in {name}", given.pop("backend", "auto"))
    flags |= {key: True for key in _FLAGS if getattr(behind, key)}
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


# The older option for a backend; settings may follow its name after a colon.
guided_decoding_backend = partial(read_backend, InvalidOption)

_POOLING_TYPES = ("CLS", "MEAN", "LAST")
_POOLER_KINDS, _POOLER_FLAGS = ("pooling_type", "seq_pooling_type"), ("use_activation", "normalize")


def pooler_config(name: str, value: Any) -> dict[str, Any]:
    """{"pooling_type": .., "use_activation": ..}: the two keys that are built."""
    given = asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
    if not isinstance(given, Mapping):
        fail(InvalidOption, name, "a dict or a PoolerConfig", value)
    found: dict[str, Any] = {}
    for key, one in given.items():
        if one is None:
            continue
        if key in _POOLER_KINDS:
            kind = str(one).upper()
            if kind not in _POOLING_TYPES:
                fail(InvalidOption, name, f"made with a {key} of {', '.join(_POOLING_TYPES)}", one)
            found["pooling_type"] = kind
        elif key in _POOLER_FLAGS:
            if not isinstance(one, bool):
                fail(InvalidOption, name, f"made with {key} True or False", one)
            found["use_activation"] = one
        else:
            raise NotSupported(
                f"{name}: {str(key)[:60]!r} is not built. It takes pooling_type (CLS, MEAN, LAST) "
                "and use_activation; a task is asked for by encode(pooling_task=...), dimensions "
                "by PoolingParams(dimensions=...)."
            )
    return found


_TAGS = ("reasoning_start_str", "reasoning_end_str")


def reasoning_config(name: str, value: Any) -> ReasoningConfig | None:
    """{"reasoning_start_str": "<think>", "reasoning_end_str": "Enough.</think>"}, or the same as a
    ReasoningConfig; None if it is empty."""
    given = asdict(value) if isinstance(value, ReasoningConfig) else mapping(name, value)
    given = {key: one for key, one in given.items() if one not in (None, "")}
    if given.pop("reasoning_parser", None) is not None:
        raise NotSupported(f"{name} with 'reasoning_parser': pass LLM(reasoning_parser=...).")
    if not set(given) <= {*_TAGS} or not all(isinstance(one, str) for one in given.values()):
        fail(InvalidOption, name, f"a dict of strings, keys among {', '.join(_TAGS)}", value)
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
