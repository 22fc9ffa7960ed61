"""A row as a line of JSON, whatever it holds."""

from __future__ import annotations

import json
import math
from typing import Any

from quire.jobs.input.plain import as_text

_ENCODER = json.JSONEncoder(ensure_ascii=False, default=as_text, allow_nan=False)
# JSON allows these characters in a string, but str.splitlines and httpx take them for line ends.
_LINE_ENDS = {end.encode(): b"\\u%04x" % ord(end) for end in "\x85\u2028\u2029"}


def json_line(row: Any) -> bytes:
    """The row, or any other value, as a line of UTF-8. NaN and the infinities, which JSON lacks,
    are null; characters that UTF-8 cannot encode are escaped."""
    try:
        line = _ENCODER.encode(row) + "\n"
    except ValueError:
        line = json.dumps(_finite(row), ensure_ascii=False, default=as_text) + "\n"
    try:
        return on_one_line(line.encode())
    except UnicodeEncodeError:
        return json.dumps(_finite(row), default=as_text).encode() + b"\n"


def on_one_line(data: bytes) -> bytes:
    """The JSON with the characters escaped that some readers take for the end of a line."""
    if not data.isascii():
        for end, escaped in _LINE_ENDS.items():
            data = data.replace(end, escaped)
    return data


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
