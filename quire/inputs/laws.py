"""Laws: upper limits for the size of the result of a method or filter, used before a template calls
it.

A method or filter without a law cannot be called, so that no new one is unlimited by mistake.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import date, time, timedelta
from typing import Any

from jinja2.exceptions import SecurityError

from quire.inputs.metering import ITEM, SCALARS, Meter

# A law says how many characters the result has at most: law(meter, text or list, arguments).
Law = Callable[[Meter, Any, Sequence[Any]], int]

_MOST_WIDTH = 1 << 20
_MOST_DIGITS = 100
_MOST_ATTRIBUTE = 200
SLOW_TEXT = 256 << 10  # characters, for operations that take a microsecond for each
WIDE = re.compile(r"\d{6}|%[^%a-zA-Z]*\*|\{[^}]*\{")  # a wide field, or a width to be filled in
_LINE_ENDS = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"


def _same(meter: Meter, text: Any, arguments: Sequence[Any]) -> int:
    return 6 * len(text)  # upper() makes three characters of one, and escaping six


def _wide(meter: Meter, text: Any, arguments: Sequence[Any]) -> int:
    width = max((a for a in arguments if isinstance(a, int)), default=0)
    if width > _MOST_WIDTH:
        raise SecurityError(f"the template pads to {width:,}; at most {_MOST_WIDTH:,} are given")
    return max(len(text), width)


def _tabs(meter: Meter, text: str, arguments: Sequence[Any]) -> int:
    _wide(meter, "", arguments)
    width = max((a for a in arguments if isinstance(a, int)), default=8)
    return len(text) + text.count("\t") * max(width, 0)


def replaced(meter: Meter, text: str, arguments: Sequence[Any]) -> int:
    texts = [a for a in arguments if isinstance(a, str)]
    if len(texts) < 2:
        return _same(meter, text, arguments)
    old, new = texts[0], texts[1]
    times = text.count(old) if old else len(text) + 1
    return len(text) + times * len(new)


def formatted(meter: Meter, text: str, arguments: Sequence[Any]) -> int:
    if WIDE.search(text):
        raise SecurityError(f"the template formats with {text!r:.60}, which may fill any memory")
    widths = sum(map(int, re.findall(r"\d+", text)))
    longest = max((meter.weigh(a) for a in arguments), default=0)
    fields = text.count("%") + text.count("{")
    return len(text) + widths + fields * longest


def joined(meter: Meter, between: str, arguments: Sequence[Any]) -> int:
    items = arguments[0] if arguments and isinstance(arguments[0], list | tuple | str) else ()
    return sum(meter.weigh(item) + len(between) for item in items)


def _split(meter: Meter, text: str, arguments: Sequence[Any]) -> int:
    between = next((a for a in arguments if isinstance(a, str) and a), None)
    pieces = len(text) // 2 if between is None else text.count(between)
    return len(text) + ITEM * (pieces + 1)


def _lines(meter: Meter, text: str, arguments: Sequence[Any]) -> int:
    return len(text) + ITEM * (1 + sum(map(text.count, _LINE_ENDS)))


def _nothing(meter: Meter, value: Any, arguments: Sequence[Any]) -> int:
    return 0


def _searched(meter: Meter, value: Any, arguments: Sequence[Any]) -> int:
    """For a search: each item is compared with the argument."""
    if any(type(a) not in SCALARS for a in arguments):
        meter.weigh(value)
    return 0


_TEXT_METHODS: dict[str, Law] = {
    **dict.fromkeys(("center", "ljust", "rjust", "zfill"), _wide),
    **dict.fromkeys(("format", "format_map"), formatted),
    **dict.fromkeys(("split", "rsplit"), _split),
    "expandtabs": _tabs,
    "replace": replaced,
    "join": joined,
    "splitlines": _lines,
    **dict.fromkeys(
        (
            *("capitalize", "casefold", "lower", "swapcase", "title", "upper", "encode"),
            *("strip", "lstrip", "rstrip", "removeprefix", "removesuffix"),
            *("partition", "rpartition"),
        ),
        _same,
    ),
    **dict.fromkeys(
        (
            *("count", "find", "rfind", "index", "rindex", "startswith", "endswith"),
            *("isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "isidentifier", "islower"),
            *("isnumeric", "isprintable", "isspace", "istitle", "isupper"),
        ),
        _nothing,
    ),
}
_SIZED = dict.fromkeys(("copy",), lambda meter, value, arguments: ITEM * len(value))
_METHODS: tuple[tuple[type | tuple[type, ...], dict[str, Law]], ...] = (
    (str, _TEXT_METHODS),
    (dict, {**_SIZED, **dict.fromkeys(("items", "keys", "values", "get"), _nothing)}),
    ((list, tuple), {**_SIZED, **dict.fromkeys(("index", "count"), _searched)}),
    (bytes, dict.fromkeys(("decode", "hex"), _same)),
    ((int, float), dict.fromkeys(("is_integer", "bit_length", "as_integer_ratio"), _nothing)),
    (
        (date, time, timedelta),
        {
            **dict.fromkeys(
                (
                    *("date", "time", "timetz", "isoformat", "timestamp", "weekday", "isoweekday"),
                    *("isocalendar", "ctime", "total_seconds"),
                ),
                _nothing,
            ),
            "strftime": lambda meter, value, arguments: sum(
                formatted(meter, a, ()) for a in arguments if isinstance(a, str)
            ),
        },
    ),
)


# Methods of text that make no more than a few times what they are given.
MODEST_METHODS = frozenset(name for name, law in _TEXT_METHODS.items() if law in (_same, _nothing))


def method_law(owner: Any, name: str) -> Law:
    """The law of a method of plain data; raises where a template may not call it."""
    for kinds, laws in _METHODS:
        if isinstance(owner, kinds):
            if name in laws:
                return laws[name]
            break
    raise SecurityError(f"a template may not call {type(owner).__name__}.{name}")


def _slow(meter: Meter, text: str, arguments: Sequence[Any]) -> int:
    if len(text) > SLOW_TEXT:
        raise SecurityError(f"this filter takes texts of up to {SLOW_TEXT:,} characters")
    given = sum(len(a) for a in arguments if isinstance(a, str))
    return 6 * len(text) * (1 + given)


def _indented(meter: Meter, text: str, arguments: Sequence[Any]) -> int:
    _wide(meter, "", arguments)
    widths = [len(a) if isinstance(a, str) else a for a in arguments if isinstance(a, str | int)]
    width = max(widths, default=4)
    lines = 1 + sum(map(text.count, _LINE_ENDS))
    return _lines(meter, text, ()) + lines * max(width, 4)


def _rounded(meter: Meter, value: Any, arguments: Sequence[Any]) -> int:
    if any(isinstance(a, int) and abs(a) > _MOST_DIGITS for a in arguments):
        raise SecurityError(f"the template rounds to more than {_MOST_DIGITS} digits")
    return 0


def _cut_up(meter: Meter, value: Any, arguments: Sequence[Any]) -> int:
    _wide(meter, "", arguments)
    return 0


def check_attribute(name: Any) -> None:
    """Refuse a long path of attributes, since it is followed for every item of a list."""
    if isinstance(name, str) and len(name) > _MOST_ATTRIBUTE:
        raise SecurityError(f"the template asks for an attribute of {len(name):,} characters")


def _whole(meter: Meter, value: Any, arguments: Sequence[Any]) -> int:
    """For sorting and grouping, which read every item and make new lists."""
    for argument in arguments:
        check_attribute(argument)
    num_items = len(value) if hasattr(value, "__len__") else 0
    meter.step(8 * num_items)
    return max(meter.weigh(value), 6 * ITEM * num_items)


# Filters whose value is taken as text, and those that take it as it is.
TEXT_FILTERS: dict[str, Law] = {
    **dict.fromkeys(("capitalize", "lower", "trim", "upper", "string", "safe"), _same),
    **dict.fromkeys(("e", "escape", "forceescape", "urlencode", "truncate"), _same),
    **dict.fromkeys(("striptags", "urlize", "wordwrap", "title", "wordcount"), _slow),
    "center": _wide,
    "format": formatted,
    "indent": _indented,
    "replace": replaced,
}
VALUE_FILTERS: dict[str, Law] = {
    **dict.fromkeys(("sort", "unique", "groupby", "dictsort", "min", "max"), _whole),
    "round": _rounded,
    "batch": _cut_up,
    "slice": _cut_up,
    "reverse": _nothing,
}
# Those that go through a list without looking into its items, and those that give back what is
# there, or a number.
WALKING_FILTERS = ("map", "select", "reject", "selectattr", "rejectattr", "items")
FREE_FILTERS = (
    *("length", "count", "first", "last", "default", "d", "random", "attr", "abs", "float", "int"),
    "filesizeformat",
)
