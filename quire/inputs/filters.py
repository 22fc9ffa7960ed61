"""The filters of templates, each with a limit (a Law) for the size of its result.

Most are Jinja's own, wrapped; filters that could make a large result of a small value are written
here. Before a value that is not text is used as text, its size is estimated: a list that contains
one list a thousand times, which contains another a thousand times, is small, but its text is not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from jinja2 import Undefined, pass_context
from jinja2.exceptions import SecurityError
from jinja2.filters import FILTERS as DEFAULT_FILTERS

from quire.inputs import metered_tree
from quire.inputs.laws import (
    FREE_FILTERS,
    SLOW_TEXT,
    TEXT_FILTERS,
    VALUE_FILTERS,
    WALKING_FILTERS,
    Law,
    check_attribute,
    joined,
)
from quire.inputs.metering import ITEM, SCALARS, SMALL_TEXT
from quire.inputs.quoting import Quoted, requoted

_MOST_INDENT = 64
_INDENTED = 60  # characters for each value: json writes indented ones in small pieces first
_ONLY_TEXT = {str}
# What these filters do with a text and no arguments, and the characters it makes of one.
_MODEST: dict[str, Callable[[str], str]] = {
    "trim": str.strip,
    "lower": str.lower,
    "upper": str.upper,
    "capitalize": str.capitalize,
    "string": str,
}
_MODEST_SIZE = 16

Filter = Callable[..., Any]


def metered_filters() -> dict[str, Filter]:
    """Every filter that a template may use, by name."""
    return {
        **{name: DEFAULT_FILTERS[name] for name in FREE_FILTERS},
        **{name: _walking(name) for name in WALKING_FILTERS},
        **{name: _with_law(name, law, as_text=True) for name, law in TEXT_FILTERS.items()},
        **{name: _with_law(name, law, as_text=False) for name, law in VALUE_FILTERS.items()},
        **{name: _slow_on_values(name) for name in ("pprint", "xmlattr")},
        "tojson": _to_json,
        "join": _join,
        "list": _list,
        "sum": _sum,
        metered_tree.STEP: _step,
        metered_tree.ADD: _add,
        metered_tree.JOIN: _concat,
        metered_tree.CUT: _cut,
        metered_tree.EACH: _each,
        metered_tree.WRITE: _write,
        metered_tree.WRITE_SUM: _write_sum,
        metered_tree.WRITE_TWO: _write_sum_of_two,
        metered_tree.WRITE_THREE: _write_sum_of_three,
        metered_tree.LOOKED_AT: _looked_at,
    }


def metered_test(function: Filter) -> Filter:
    """A test that compares two values, after their sizes are counted."""

    @pass_context
    def limited(context: Any, *values: Any) -> Any:
        for value in values:
            _looked_at(context, value)
        return function(*values)

    return limited


def as_text(context: Any, value: Any) -> str:
    """A value as it is written out."""
    if type(value) is str:
        return value
    context.environment.check_written(value)
    if context.writer is not None:
        value = context.writer.written(value)
    return str(value) if isinstance(value, str) else context.meter.text(value)


def _call(context: Any, function: Filter, *args: Any, **kwargs: Any) -> Any:
    """Call a filter of Jinja's, with the context or environment that it expects first."""
    wanted = getattr(getattr(function, "jinja_pass_arg", None), "name", None)
    if wanted is None:
        return function(*args, **kwargs)
    first = {
        "context": context,
        "eval_context": context.eval_ctx,
        "environment": context.environment,
    }[wanted]
    return function(first, *args, **kwargs)


def _with_law(name: str, law: Law, *, as_text: bool) -> Filter:
    function: Filter = DEFAULT_FILTERS[name]

    @pass_context
    def limited(context: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        meter, writer = context.meter, context.writer
        meter.step(1)
        quoted = isinstance(value, Quoted)
        if as_text:
            if not isinstance(value, str | Undefined):
                value = meter.text(value if writer is None else writer.written(value))
            if writer is not None and not quoted:
                args = tuple(map(writer.written, args))
                kwargs = {key: writer.written(item) for key, item in kwargs.items()}
        looked_at = "" if as_text and not isinstance(value, str) else value
        meter.need(law(meter, looked_at, (*args, *kwargs.values())))
        made = meter.made(_call(context, function, value, *args, **kwargs))
        return requoted(made) if quoted else made

    return _modest(_MODEST[name], limited) if name in _MODEST else limited


def _modest(quickly: Callable[[str], str], limited: Filter) -> Filter:
    """A filter that every chat uses on every message: short texts go straight through."""

    @pass_context
    def chosen(context: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        if type(value) is str and len(value) < SMALL_TEXT and not args and not kwargs:
            context.meter.left -= _MODEST_SIZE * (len(value) + 1)
            return quickly(value)
        return limited(context, value, *args, **kwargs)

    return chosen


def _walking(name: str) -> Filter:
    function: Filter = DEFAULT_FILTERS[name]

    @pass_context
    def counted(context: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        for named in (*args[:1], kwargs.get("attribute")):
            check_attribute(named)
        if not isinstance(value, Mapping):
            value = context.meter.each(value)
        return _call(context, function, value, *args, **kwargs)

    return counted


def _slow_on_values(name: str) -> Filter:
    function: Filter = DEFAULT_FILTERS[name]

    @pass_context
    def limited(context: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        if context.meter.weigh(value) > SLOW_TEXT:
            raise SecurityError(f"the filter {name} takes up to {SLOW_TEXT:,} characters")
        if context.writer is not None:
            value = context.writer.written(value)
        return context.meter.made(_call(context, function, value, *args, **kwargs))

    return limited


@pass_context
def _to_json(
    context: Any,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes for HTML, which models were not trained on.
    meter, writer = context.meter, context.writer
    meter.step(1)
    size = meter.weigh(value)
    if indent is not None:
        width = len(indent) if isinstance(indent, str) else int(indent)
        if width > _MOST_INDENT:
            raise SecurityError(f"the template indents JSON by {width}; up to {_MOST_INDENT} are")
        size = size * (_INDENTED + max(width, 0))
    between = sum(len(each) for each in separators) if separators else 2
    meter.need(size * (1 + between))
    if writer is not None:
        value = writer.written(value)
    made: str = meter.made(
        json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )
    )
    return made


@pass_context
def _join(context: Any, value: Any, d: str = "", attribute: Any = None) -> Any:
    check_attribute(attribute)
    items = context.meter.listed(value)
    between = as_text(context, d)
    if context.writer is not None:
        items = context.writer.written(items)
    context.meter.need(joined(context.meter, between, (items,)))
    made = _call(context, DEFAULT_FILTERS["join"], items, between, attribute)
    return context.meter.made(made)


@pass_context
def _list(context: Any, value: Any) -> Any:
    made = context.meter.made(context.meter.listed(value))
    return requoted(made) if isinstance(value, Quoted) else made


@pass_context
def _sum(context: Any, value: Any, attribute: Any = None, start: Any = 0) -> Any:
    check_attribute(attribute)
    items = context.meter.listed(value)
    context.meter.weigh(items)
    if not isinstance(start, list | tuple):
        return _call(context, DEFAULT_FILTERS["sum"], items, attribute, start)
    # One list of all the lists; adding them one by one would copy the first for each other.
    if attribute is not None:
        items = list(_call(context, DEFAULT_FILTERS["map"], items, attribute=attribute))
    context.meter.need(ITEM * sum(len(item) for item in items))
    return context.meter.made([*start, *(inner for item in items for inner in item)])


@pass_context
def _step(context: Any, steps: int, size: int) -> None:
    context.meter.step(abs(steps), abs(size))


@pass_context
def _write(context: Any, value: Any) -> str:
    text = value if type(value) is str else as_text(context, value)
    context.meter.left -= len(text)
    if context.meter.left < 0:
        context.meter.look()
    return text


@pass_context
def _write_sum(context: Any, *parts: Any) -> str:
    total = _add(context, *parts)
    return total if type(total) is str else as_text(context, total)


@pass_context
def _write_sum_of_two(context: Any, left: Any, right: Any) -> str:
    # A fast way for two and three parts, which nearly all joins in templates have.
    if type(left) is str and type(right) is str:
        meter = context.meter
        meter.left -= len(left) + len(right)
        if meter.left > 0:
            return left + right
    return _write_sum(context, left, right)


@pass_context
def _write_sum_of_three(context: Any, left: Any, middle: Any, right: Any) -> str:
    if type(left) is str and type(middle) is str and type(right) is str:
        meter = context.meter
        meter.left -= len(left) + len(middle) + len(right)
        if meter.left > 0:
            return left + middle + right
    return _write_sum(context, left, middle, right)


@pass_context
def _add(context: Any, *parts: Any) -> Any:
    meter = context.meter
    if {*map(type, parts)} == _ONLY_TEXT:
        size = sum(map(len, parts))
        meter.need(size)
        meter.left -= size
        return "".join(parts)
    writer = context.writer
    if writer is not None:
        parts = tuple(writer.write(p) if isinstance(p, Quoted) else p for p in parts)
    total = parts[0]
    for part in parts[1:]:
        if isinstance(total, str | list | tuple) and isinstance(part, str | list | tuple):
            meter.need(ITEM * (len(total) + len(part)))
        total = meter.made(total + part)
    return total


@pass_context
def _concat(context: Any, *parts: Any) -> str:
    texts = [as_text(context, part) for part in parts]
    context.meter.need(sum(map(len, texts)))
    made: str = context.meter.made("".join(texts))
    return made


@pass_context
def _cut(context: Any, value: Any, start: Any, stop: Any, step: Any) -> Any:
    if isinstance(value, str | list | tuple):
        context.meter.step(1)
        context.meter.need((1 if isinstance(value, str) else ITEM) * len(value))
    made = context.meter.made(value[start:stop:step])
    return requoted(made) if isinstance(value, Quoted) else made


@pass_context
def _each(context: Any, items: Any) -> Any:
    return context.meter.each(items)


@pass_context
def _looked_at(context: Any, value: Any) -> Any:
    if type(value) not in SCALARS:
        context.meter.weigh(value)
    return value
