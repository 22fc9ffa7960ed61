"""Reads JSON of a model from an unknown source: bounded in size, no key twice."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from quire.errors import CorruptModel

MAX_BYTES = 16 << 20


def refuse_pointer(start: bytes, name: str) -> None:
    """Refuse a Git LFS pointer: a clone without Git LFS has a few lines of text for a large
    file."""
    if start.startswith(b"version https://git-lfs"):
        raise CorruptModel(f"{name} is only a pointer of Git LFS; run: git lfs pull")


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file of at most MAX_BYTES."""
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise CorruptModel(f"{path.name}: {size:,} bytes of JSON; quire reads up to {MAX_BYTES:,}")
    return parse_object(path.read_bytes(), path.name)


def parse_object(raw: bytes, name: str) -> dict[str, Any]:
    """The JSON object in `raw`; `name` is for the error."""
    value = _parsed(raw, name)
    if not isinstance(value, dict):
        raise CorruptModel(f"{name}: holds a JSON {type(value).__name__}, not an object")
    return value


def parse_array(raw: bytes, name: str) -> list[Any]:
    """The JSON array in `raw`; `name` is for the error."""
    value = _parsed(raw[: MAX_BYTES + 1], name)
    if not isinstance(value, list):
        raise CorruptModel(f"{name}: holds a JSON {type(value).__name__}, not an array")
    return value


def _parsed(raw: bytes, name: str) -> Any:
    refuse_pointer(raw, name)
    try:
        return json.loads(raw, object_pairs_hook=_without_twins)
    except (ValueError, RecursionError) as error:  # also bytes that are not UTF-8, huge numbers
        raise CorruptModel(f"{name}: not readable as JSON: {_short(error)}") from None


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twin = next(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
        raise ValueError(f"key {twin!r} appears twice")
    return found


def _short(error: Exception) -> str:
    return str(error)[:200]
