"""Options as a TOML file: what `quire run --config` reads."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def toml_text(options: Mapping[str, Any]) -> str:
    """The options under the names they have on the command line; tables come last."""
    lines: list[str] = []
    tables: list[str] = []
    for name, value in options.items():
        key = _key(name.replace("_", "-"))
        if isinstance(value, Mapping):
            tables += ["", f"[{key}]", *_pairs(value)]
        elif _is_tables(value):
            for each in value:
                tables += ["", f"[[{key}]]", *_pairs(each)]
        else:
            lines.append(f"{key} = {_value(value)}")
    return "\n".join([*lines, *tables])


def _is_tables(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and isinstance(value[0], Mapping)


def _pairs(table: Mapping[str, Any]) -> list[str]:
    return [f"{_key(str(name))} = {_value(value)}" for name, value in table.items()]


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _value(name)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "{" + ", ".join(_pairs(value)) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, str):  # a JSON string is a TOML string, except for one character
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
