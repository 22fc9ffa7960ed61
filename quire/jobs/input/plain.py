"""How values that JSON lacks, such as rows of Arrow hold, are written.

A date, a time, a duration, a decimal or a UUID becomes text, and a number that is not finite
becomes null. Bytes become base64 in an output. In a prompt they are refused: a model is hardly
meant to read base64.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from quire.jobs.input.rows import BadRow
from quire.jobs.input.strict_json import DEEPEST, nests_deeper

_KNOWN = (str, int, float, type(None))
_TEXTS = (date, time, timedelta, Decimal, UUID)


def as_text(value: Any) -> str:
    """A value that JSON lacks, for the output."""
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    return str(value.isoformat()) if hasattr(value, "isoformat") else str(value)


def askable(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The same values in JSON's own types, to be sent to the engine; raises BadRow."""
    if nests_deeper(asked, DEEPEST):
        raise BadRow("malformed_row", f"it nests more than {DEEPEST} levels deep")
    return {name: _askable(value, name) for name, value in asked.items()}


def _askable(value: Any, where: str) -> Any:
    if isinstance(value, _KNOWN):
        return None if isinstance(value, float) and not math.isfinite(value) else value
    if isinstance(value, Mapping):
        return {str(name): _askable(each, f"{where}.{name}") for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_askable(each, f"{where}[{i}]") for i, each in enumerate(value)]
    if isinstance(value, _TEXTS):
        return as_text(value)
    if hasattr(value, "tolist"):  # numbers and arrays of numpy, in rows of a program
        return _askable(value.tolist(), where)
    raise BadRow(
        "invalid_prompt",
        f"{where[:100]} holds {type(value).__name__}, which a model cannot read; make the column "
        "text, or leave it out",
    )
