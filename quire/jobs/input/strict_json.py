"""JSON as rows hold it: strict, and shallow enough for whatever handles it later.

Python's own limit depends on the depth of the call stack, so a value that was read here could fail
when it is written elsewhere. A fixed depth, far below that limit, is the same everywhere.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

DEEPEST = 128  # levels of lists and objects


def parse(text: str) -> Any:
    """The value of the text; ValueError says why it is not valid."""
    try:
        found = _DECODER.decode(text)
    except RecursionError:
        raise _too_deep() from None
    except json.JSONDecodeError as error:  # it counts lines of this text, where a file has many
        raise ValueError(f"{error.msg} at its character {error.pos}") from None
    # Most texts have too few brackets to nest so deeply, and need no walk.
    if text.count("{") + text.count("[") > DEEPEST and nests_deeper(found, DEEPEST):
        raise _too_deep()
    return found


def nests_deeper(value: Any, limit: int) -> bool:
    """Whether lists and objects lie in each other more than `limit` levels deep."""
    level = [value]
    for _ in range(limit):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list | tuple)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list | tuple)
        ]
        if not level:
            return False
    return True


def _too_deep() -> ValueError:
    return ValueError(f"it nests more than {DEEPEST} levels deep")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"{text[:20]} is more than a double holds")
    return value


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)
