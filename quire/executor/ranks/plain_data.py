"""Specs and configs as JSON and back, for processes that run the same code. No pickle.

A dataclass becomes its name and its fields, a tuple a list; every list comes back as a tuple.
"""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from quire import config, layer_plan, spec
from quire.executor import executor
from quire.params import structured
from quire.ranks import shares
from quire.weights import source

_KIND = "is"  # the key of a dataclass's name
_MODULES = (config, layer_plan, spec, structured, shares, executor, source)
_CLASSES: dict[str, Any] = {
    name: kind
    for module in _MODULES
    for name, kind in vars(module).items()
    if isinstance(kind, type) and is_dataclass(kind)
}


def to_json(value: Any) -> bytes:
    """TypeError for what is no plain data."""
    return json.dumps(_plain(value)).encode()


def from_json(data: bytes) -> Any:
    return _made(json.loads(data))


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Path):
        return {_KIND: "Path", "path": str(value)}
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if isinstance(value, dict) and _KIND not in value and all(isinstance(k, str) for k in value):
        return {name: _plain(one) for name, one in value.items()}
    name = type(value).__name__
    if _CLASSES.get(name) is not type(value):
        raise TypeError(f"a {name} cannot go to another process: {str(value)[:100]}")
    given = {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    return {_KIND: name, **given}


def _made(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_made(one) for one in value)
    if not isinstance(value, dict):
        return value
    given = {name: _made(one) for name, one in value.items()}
    kind = given.pop(_KIND, None)
    if kind is None:
        return given
    return Path(given["path"]) if kind == "Path" else _CLASSES[kind](**given)
