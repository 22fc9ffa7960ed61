"""Numbers within bounds, as regexes of the texts that llguidance accepts for them.

Whole numbers have no leading zeros. With a bound, fractions have no exponent. A number equal to an
upper bound has no trailing zeros; a number above an excluded lower bound, with the same whole part,
does not end in zero. These are llguidance's rules, so they are ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

_WHOLE = "(0|[1-9][0-9]*)"
_FRACTION = r"(\.[0-9]+)?"
# Above this, llguidance computes in floats.
_LARGEST = 2**53


@dataclass(frozen=True, slots=True)
class Bounds:
    """None: no bound. `takes_low`, `takes_high`: whether the bound itself is allowed."""

    low: Decimal | None
    high: Decimal | None
    takes_low: bool = True
    takes_high: bool = True


def bounds_of(schema: dict[str, Any]) -> Bounds | None:
    """The bounds of a schema; None if they are not plain numbers, or no number is within them."""
    sides: list[tuple[Decimal | None, bool]] = []
    for name, excluding, sign in (
        ("minimum", "exclusiveMinimum", 1),
        ("maximum", "exclusiveMaximum", -1),
    ):
        bound, other = schema.get(name), schema.get(excluding)
        if isinstance(other, bool):  # the form of draft 4
            other = bound if other else None
        if not all(one is None or _is_plain(one) for one in (bound, other)):
            return None
        excluded = other is not None and (bound is None or other * sign >= bound * sign)
        found = other if excluded else bound
        sides.append((None if found is None else Decimal(repr(found)), not excluded))
    (low, takes_low), (high, takes_high) = sides
    is_empty = low is not None and high is not None and low >= high
    if is_empty and not (low == high and takes_low and takes_high):
        return None
    return Bounds(low, high, takes_low, takes_high)


def _is_plain(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < _LARGEST


def whole_number(bounds: Bounds) -> str | None:
    """A regex of the whole numbers within bounds; None if there are none."""
    low = None if bounds.low is None else math.ceil(bounds.low)
    high = None if bounds.high is None else math.floor(bounds.high)
    if low is not None and low == bounds.low and not bounds.takes_low:
        low += 1
    if high is not None and high == bounds.high and not bounds.takes_high:
        high -= 1
    if low is None and high is None:
        return "-?" + _WHOLE
    if low is not None and high is not None and low > high:
        return None
    found = []
    if high is None or high >= 0:
        found += _between(max(low or 0, 0), high)
    if low is None or low < 0:
        # With bounds on both sides of zero, -0 is allowed.
        least = 0 if low is not None and high is not None and high >= 0 else 1
        least = max(least, -high) if high is not None else least
        found += ["-" + one for one in _between(least, None if low is None else -low)]
    return "|".join(found)


def _between(low: int, high: int | None) -> list[str]:
    """Regexes of all numbers from `low` to `high`: 7 .. 120 -> 7-9, 10-99, 100-119, 120."""
    found: list[str] = []
    if high is None:
        length = len(str(low))
        return [*_between(low, 10**length - 1), f"[1-9][0-9]{{{length},}}"]
    while low <= high:
        # As many free digits at the end as fit: all numbers with that beginning are taken at once.
        free = 0
        while low % 10 ** (free + 1) == 0 and low and low + 10 ** (free + 1) - 1 <= high:
            free += 1
        size = 10**free
        digit = low // size % 10
        last = min(9, digit + (high - low + 1) // size - 1)
        begin = str(low // size)[:-1]
        found.append(f"{begin}[{digit}-{last}]" + f"[0-9]{{{free}}}" * bool(free))
        low += (last - digit + 1) * size
    return found


def number(bounds: Bounds) -> str | None:
    """A regex of the numbers within bounds; None if llguidance's rules for them are not known."""
    low, high = bounds.low, bounds.high
    if low is None and high is None:
        return f"-?{_WHOLE}{_FRACTION}([eE][+-]?[0-9]+)?"
    if low == high and low is not None:
        return _text(low).replace(".", r"\.")
    found: list[str | None] = []
    zero = Decimal(0)
    if low is None or low < 0:
        above, takes = (zero, False) if high is None or high >= 0 else (-high, bounds.takes_high)
        below = _positive(above, None if low is None else -low, takes, bounds.takes_low)
        found.append(None if below is None else f"-({below})")
    if high is None or high > 0:
        is_above = low is not None and low >= 0
        first, takes = (low, bounds.takes_low) if is_above and low is not None else (zero, True)
        found.append(_positive(first, high, takes, bounds.takes_high))
    elif high == 0 and bounds.takes_high:
        found.append("0")
    texts = [one for one in found if one is not None]
    return "|".join(texts) if len(texts) == len(found) else None


def _text(value: Decimal) -> str:
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _positive(low: Decimal, high: Decimal | None, takes_low: bool, takes_high: bool) -> str | None:
    """A regex of the numbers from `low` >= 0 to `high`."""
    if high is None:
        length = len(str(int(low)))
        rest = f"[1-9][0-9]{{{length},}}{_FRACTION}"
        return f"{_positive(low, Decimal(10**length), takes_low, False)}|{rest}"
    (first, _, behind_first), (last, _, behind_last) = (
        _text(one).partition(".") for one in (low, high)
    )
    if first == last:
        length = max(len(behind_first), len(behind_last))
        behind = behind_first.ljust(length, "0"), behind_last.ljust(length, "0")
        fraction = _within(*behind, takes_low, takes_high)
        # llguidance accepts the whole number itself, even if it is excluded (see schema.py).
        return None if fraction is None else rf"{first}(\.({fraction}))" + "?" * (not low % 1)
    found, start = [], int(first)
    if behind_first or not takes_low:
        found.append(rf"{first}\.({_at_least(behind_first, takes_low)})")
        start += 1
    if start < int(last):
        found.append(f"({'|'.join(_between(start, int(last) - 1))}){_FRACTION}")
    if behind_last:
        found.append(rf"{last}(\.({_at_most(behind_last, takes_high)}))?")
    elif takes_high:
        found.append(rf"{last}(\.0+)?")
    return "|".join(found)


def _at_least(digits: str, takes: bool) -> str:
    """Digits after the point that are at least these."""
    if not digits:
        return "[0-9]*" if takes else "[0-9]*[1-9]"
    if takes and len(digits) == 1:
        return f"[{digits}-9][0-9]*"
    more = f"|[{int(digits[0]) + 1}-9][0-9]*" if digits[0] < "9" else ""
    return f"{digits[0]}({_at_least(digits[1:], takes)}){more}"


def _at_most(digits: str, takes: bool) -> str:
    """Digits after the point that are at most these; none of them ends in zero."""
    if not digits:
        return ""
    less = f"[0-{int(digits[0]) - 1}][0-9]*" if digits[0] > "0" else ""
    if len(digits) == 1 and not takes:
        return less
    same = f"{digits[0]}({_at_most(digits[1:], takes)})"
    return f"{same}|{less}" if less else same


def _within(low: str, high: str, takes_low: bool, takes_high: bool) -> str | None:
    """Digits between these two, which have equal length; None if there are none."""
    if low == high:
        return low if takes_low and takes_high else None
    if low[0] == high[0]:
        rest = _within(low[1:], high[1:], takes_low, takes_high)
        return None if rest is None else f"{low[0]}({rest})"
    found = [f"{low[0]}({_at_least(low[1:].rstrip('0'), takes_low)})"]
    if int(low[0]) + 1 < int(high[0]):
        found.append(f"[{int(low[0]) + 1}-{int(high[0]) - 1}][0-9]*")
    behind = high[1:].rstrip("0")
    if behind or takes_high:
        found.append(f"{high[0]}({_at_most(behind, takes_high)})")
    return "|".join(found)
