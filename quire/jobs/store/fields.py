"""Whether what was read from disk is what its class says: a job that somebody else made may hold
anything, and what goes wrong is then told here and not deep inside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


def misfits(made: Any) -> list[str]:
    """The fields of a dataclass whose values are not of their types."""
    kind: Any = type(made)
    return [name for name, hint in _hints(kind).items() if not _fits(getattr(made, name), hint)]


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _fits(value: Any, kind: Any) -> bool:
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is Literal:
        return value in parts
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        parts = parts[:1] * len(value) if parts[1:] == (...,) else parts
        return len(parts) == len(value) and all(map(_fits, value, parts))
    if origin is Mapping:
        return isinstance(value, Mapping)
    if is_dataclass(kind):
        return isinstance(value, kind) and not misfits(value)  # type: ignore[arg-type]
    if kind is int:  # to Python, True is a number too
        return isinstance(value, int) and not isinstance(value, bool)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return kind is Any or isinstance(value, kind)
