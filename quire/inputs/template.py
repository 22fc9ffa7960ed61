"""Chat templates: Jinja in a sandbox, with the names that model templates count on.

A template comes from a model's files, so it is treated as a stranger's code: it sees plain data
only, cannot reach Python's insides, and is stopped when it counts, repeats or writes too much.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import Environment, StrictUndefined, Template, TemplateError, meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from quire.errors import InvalidPrompt

_MAX_CHARACTERS = 64 * 2**20  # of a rendered chat
_MAX_REPEAT = 2**20  # characters or items that one expression may make by repetition
_MAX_COUNT = 10**6  # of all the numbers that the `range`s of one rendering give
_WIDE_FORMAT = re.compile(
    r"\d{6}|%[^%a-z]*\*|\{[^}]*\{"
)  # a wide field, or a width to be filled in
# What a template may raise, besides RecursionError.
FAILURES = (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError)


class _GenerationTag(Extension):
    """{% generation %} ... {% endgeneration %} marks what the assistant says; it is kept as is."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Macro) -> str:
        return str(caller())


class _PlainNamespace(Namespace):
    """Jinja's namespace, without names that Python itself gives a meaning to."""

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_hidden(name)
        super().__setitem__(name, value)


def _refuse_hidden(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a template may not set {name!r}: names with _ in front are Python's")


def _namespace(*args: Any, **values: Any) -> Namespace:
    for name in dict(*args, **values):
        _refuse_hidden(name)
    return _PlainNamespace(*args, **values)


def _dict(*args: Any, **values: Any) -> dict[Any, Any]:
    return dict(*args, **values)


def _raise(message: str) -> None:
    raise TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes for HTML, which models were not trained on.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


class _Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"*", "**", "%"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            for many, times in ((left, right), (right, left)):
                if isinstance(many, str | list | tuple) and isinstance(times, int):
                    _limit(len(many) * times)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _limit(left.bit_length() * right)
        elif operator == "%" and isinstance(left, str) and _WIDE_FORMAT.search(left):
            raise SecurityError(f"a template formats with {left!r}, which may fill any memory")
        return super().call_binop(context, operator, left, right)

    def call(self, context: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        method = getattr(function, "__wrapped__", function)  # jinja wraps str.format
        text = getattr(method, "__self__", None)
        if isinstance(text, str):  # "x".center(10**9) and its like
            for width in (*args, *kwargs.values()):
                _limit(width)
            if method.__name__ in ("format", "format_map") and _WIDE_FORMAT.search(text):
                raise SecurityError(f"a template formats with {text!r}, which may fill any memory")
        return super().call(context, function, *args, **kwargs)


def _limit(size: object) -> None:
    if isinstance(size, int) and size > _MAX_REPEAT:
        raise SecurityError(f"a template made a value of size {size}; the limit is {_MAX_REPEAT}")


def _with_limit(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that pads, with its width limited."""

    def limited(value: Any, *args: Any, **kwargs: Any) -> Any:
        for width in (*args, *kwargs.values()):
            _limit(width)
        return function(value, *args, **kwargs)

    return limited


def _counting_range() -> Callable[..., range]:
    """`range` for one rendering, which refuses to give more than _MAX_COUNT numbers in all."""
    left = _MAX_COUNT

    def limited(*args: int) -> range:
        nonlocal left
        numbers = range(*args)
        left -= len(numbers)
        if left < 0:
            raise SecurityError(f"a template counted further than {_MAX_COUNT} in all")
        return numbers

    return limited


@lru_cache(maxsize=1)
def _environment() -> _Sandbox:
    sandbox = _Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    sandbox.filters["tojson"] = _to_json
    for name in ("center", "indent", "batch", "slice"):
        sandbox.filters[name] = _with_limit(sandbox.filters[name])
    sandbox.globals.pop("lipsum")
    sandbox.globals.update(
        raise_exception=_raise,
        strftime_now=lambda form: datetime.now().strftime(form),
        namespace=_namespace,
        dict=_dict,
    )
    return sandbox


def strict_sandbox() -> Environment:
    """The sandbox for templates that a user wrote over names of his own: a name that is not
    there is an error, and white space stays as it is written."""
    return _environment().overlay(
        undefined=StrictUndefined,
        trim_blocks=False,
        lstrip_blocks=False,
        keep_trailing_newline=True,
    )


def bounded(variables: Mapping[str, Any]) -> dict[str, Any]:
    """What one rendering sees: the variables, and a `range` that does not count for ever."""
    return {"range": _counting_range(), **variables}


def render_bounded(template: Template, variables: Mapping[str, Any]) -> str:
    """The template's text; SecurityError where it writes without end."""
    parts: list[str] = []
    written = 0
    for part in template.generate(bounded(variables)):
        parts.append(part)
        written += len(part)
        if written > _MAX_CHARACTERS:
            raise SecurityError(f"it wrote more than {_MAX_CHARACTERS} characters")
    return "".join(parts)


class ChatTemplate:
    """One template, compiled.

    `takes_parts`: it walks through the parts of a message's content; else content is one string.
    `takes_text`: a content that is one string is fine. `variables`: the names it reads.
    """

    def __init__(self, source: str) -> None:
        environment = _environment()
        try:
            tree = environment.parse(source)
            self._template = environment.from_string(source)
        except (TemplateError, RecursionError) as error:
            raise InvalidPrompt(
                f"the chat template does not compile: {error}; mend it, or pass another one as "
                "chat_template=",
                parameter="chat_template",
            ) from None
        self.source = source
        self.variables = frozenset(meta.find_undeclared_variables(tree))
        self.takes_parts = _walks_content(tree)
        self.takes_text = not self.takes_parts or any(
            test.name == "string" for test in tree.find_all(nodes.Test)
        )

    def render(self, variables: Mapping[str, Any]) -> str:
        """The text of a chat; whatever the template raises becomes an InvalidPrompt."""
        try:
            return render_bounded(self._template, variables)
        except RecursionError:
            raise self._failed("it calls itself without end") from None
        except FAILURES as error:
            raise self._failed(str(error)) from error

    def _failed(self, reason: str) -> InvalidPrompt:
        return InvalidPrompt(
            f"the chat template refused the messages: {reason}; change them, or pass another "
            "chat_template=",
            parameter="messages",
        )


@lru_cache(maxsize=32)
def compile_template(source: str) -> ChatTemplate:
    """The template, compiled once."""
    return ChatTemplate(source)


def _walks_content(tree: nodes.Template) -> bool:
    """Whether a template loops over a message's content, directly or under another name."""
    names = {"content"}
    for assign in tree.find_all(nodes.Assign):
        if isinstance(assign.target, nodes.Name) and _is_content(assign.node, frozenset()):
            names.add(assign.target.name)
    return any(_is_content(loop.iter, frozenset(names)) for loop in tree.find_all(nodes.For))


def _is_content(node: nodes.Node | None, names: frozenset[str]) -> bool:
    if isinstance(node, nodes.Filter):
        return _is_content(node.node, names)
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    return isinstance(node, nodes.Name) and node.name in names
