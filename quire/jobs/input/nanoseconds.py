"""Moments, times and durations to the nanosecond, which Arrow has and Python has no type for.

pyarrow gives pandas' types for them where pandas is installed, and fails or drops digits where it
is not. A row must read the same everywhere: values in whole microseconds have Python's own types,
finer ones have the types below, which are written with all nine digits.
"""

from __future__ import annotations

from datetime import datetime, time, timedelta
from typing import Any

import pyarrow as pa


class FineMoment(datetime):
    """A moment with `nanosecond`, from 1 to 999, behind its microseconds."""

    nanosecond: int

    def isoformat(self, sep: str = "T", timespec: str = "auto") -> str:
        return _with_digits(super().isoformat(sep, "microseconds"), self.nanosecond)


class FineTime(time):
    """A time of day with such a `nanosecond`."""

    nanosecond: int

    def isoformat(self, timespec: str = "auto") -> str:
        return _with_digits(super().isoformat("microseconds"), self.nanosecond)


class FineDuration(timedelta):
    """A duration with such a `nanosecond`, which is added also where the duration is negative."""

    nanosecond: int

    def __str__(self) -> str:
        whole = super().__str__()
        return f"{whole if self.microseconds else whole + '.000000'}{self.nanosecond:03}"


def holds_fine(kind: pa.DataType) -> bool:
    """Whether values of this type, or values nested in them, are counted in nanoseconds."""
    return "[ns" in str(kind)


def is_fine(kind: pa.DataType) -> bool:
    """Whether it is a moment, a time or a duration in nanoseconds."""
    return getattr(kind, "unit", None) == "ns"


def fine_value(scalar: Any) -> Any:
    """A scalar of such a type; raises as pyarrow does where its time zone is not known here."""
    kind = scalar.type
    micros, rest = divmod(scalar.value, 1000)
    if pa.types.is_timestamp(kind):
        at = pa.scalar(micros, pa.timestamp("us", kind.tz)).as_py()
        made: Any = FineMoment.combine(at.date(), at.timetz()) if rest else at
    elif pa.types.is_time(kind):
        at = pa.scalar(micros, pa.time64("us")).as_py()
        made = FineTime(at.hour, at.minute, at.second, at.microsecond) if rest else at
    else:
        made = (FineDuration if rest else timedelta)(microseconds=micros)
    if rest:
        made.nanosecond = rest
    return made


def has_nanosecond(value: Any) -> bool:
    """Whether it is one of these, or a list or an object with one in it."""
    if isinstance(value, dict):
        return any(map(has_nanosecond, value.values()))
    if isinstance(value, list | tuple):
        return any(map(has_nanosecond, value))
    return isinstance(value, FineMoment | FineTime | FineDuration)


def _with_digits(text: str, nanosecond: int) -> str:
    """ "00:00:00.000001+01:00" with 7 is "00:00:00.000001007+01:00"."""
    end = text.index(".") + 7
    return f"{text[:end]}{nanosecond:03}{text[end:]}"
