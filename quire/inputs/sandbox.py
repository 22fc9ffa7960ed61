"""The sandbox that templates run in: plain data only, and a budget for each rendering.

Everything that a template does is one of four operations here: a call (of a method, a macro or a
function), a filter, an operator, a written value. Each is counted by the rendering's Meter.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from types import BuiltinMethodType
from typing import Any

from jinja2 import (
    Environment,
    Template,
    TemplateError,
    nodes,
    pass_context,
)
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from quire.inputs import metered_tree
from quire.inputs.filters import metered_filters, metered_test
from quire.inputs.laws import MODEST_METHODS, WIDE, formatted, method_law
from quire.inputs.metering import SCALARS, SMALL_TEXT, Meter
from quire.inputs.quoting import Quoted, Writer, requoted

_MOST_REPEAT = 1 << 20  # characters or items that one expression may make by repetition
# Five times the longest known template; compiling takes a kilobyte of memory for a character.
_MOST_SOURCE = 256 << 10
_MOST_BITS = 1 << 16
_MOST_DATE = 1000
_MODEST = 16  # characters that a modest method makes of one, at most, and of none
# What Jinja passes beside the arguments that a template writes.
_SCOPES = ("_loop_vars", "_block_vars")
_COMPARING = ("eq", "ne", "lt", "le", "gt", "ge", "equalto", "greaterthan", "lessthan", "in")
_COMPARING_SIGNS = ("==", "!=", "<", "<=", ">", ">=")


class MeteredContext(Context):
    """The variables of one rendering, with its budget."""

    def __init__(
        self,
        environment: Environment,
        parent: dict[str, Any],
        name: str | None,
        blocks: dict[str, Any],
        globals: Any = None,
    ) -> None:
        super().__init__(environment, parent, name, blocks, globals)
        self.meter = Meter()
        self.writer: Writer | None = None

    def derived(self, locals: dict[str, Any] | None = None) -> Context:
        """A block's context: another view, the same budget."""
        made = super().derived(locals)
        if isinstance(made, MeteredContext):
            made.meter, made.writer = self.meter, self.writer
        return made


class _GenerationTag(Extension):
    """{% generation %} ... {% endgeneration %} marks text of the assistant; it changes nothing."""

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


def _strftime_now(form: str) -> str:
    if len(form) > _MOST_DATE or WIDE.search(form):
        raise SecurityError(f"the template writes the date as {form!r:.60}, which may fill memory")
    return datetime.now().strftime(form)


@pass_context
def _range(context: MeteredContext, *args: int) -> range:
    return context.meter.count(range(*args))


class Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"*", "**", "%"})
    context_class = MeteredContext

    def check_written(self, value: Any) -> None:
        """Raise if a template must not write this value."""

    def _generate(self, source: nodes.Template, *rest: Any, **more: Any) -> str:
        return super()._generate(metered_tree.metered(source), *rest, **more)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and type(left) is int:
            return left % right
        meter, writer = context.meter, context.writer
        if operator == "*":
            for many, times in ((left, right), (right, left)):
                if isinstance(many, str | list | tuple) and isinstance(times, int):
                    _limit(len(many) * times)
            if isinstance(left, int) and isinstance(right, int):
                _limit_bits(left.bit_length() + right.bit_length())
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _limit_bits(left.bit_length() * right)
        elif operator == "%" and isinstance(left, str):
            arguments = right if isinstance(right, tuple) else (right,)
            meter.need(formatted(meter, left, arguments))
            if writer is not None and not isinstance(left, Quoted):
                written = tuple(map(writer.written, arguments))
                right = written if isinstance(right, tuple) else written[0]
        made = meter.made(super().call_binop(context, operator, left, right))
        is_quoted = isinstance(left, Quoted) or (operator == "*" and isinstance(right, Quoted))
        return requoted(made) if is_quoted else made

    def call(self, context: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        meter = context.meter
        method = getattr(function, "__wrapped__", function)  # jinja wraps str.format
        if isinstance(method, BuiltinMethodType):
            for name in _SCOPES:
                kwargs.pop(name, None)
            text = method.__self__
            if type(text) is str and len(text) < SMALL_TEXT and method.__name__ in MODEST_METHODS:
                meter.left -= _MODEST * len(text) + _MODEST
                return function(*args, **kwargs)
            return self._call_method(context, function, method, args, kwargs)
        if not isinstance(function, Macro):
            written = [value for key, value in kwargs.items() if key not in _SCOPES]
            for value in (*args, *written):
                if type(value) not in SCALARS:
                    meter.weigh(value)  # it may be compared with what has been
        return meter.made(super().call(context, function, *args, **kwargs))

    def _call_method(
        self,
        context: Any,
        function: Any,
        method: BuiltinMethodType,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """A method of text, a list, a dict or a number, within its law."""
        meter, writer, owner = context.meter, context.writer, method.__self__
        law = method_law(owner, method.__name__)
        if method.__name__ == "join" and args:
            args = (meter.listed(args[0]), *args[1:])
        values = (*args, *kwargs.values())
        for value in values:
            if type(value) not in SCALARS:
                meter.weigh(value)
        meter.step(1)
        meter.need(law(meter, owner, values))
        if writer is None or not isinstance(owner, str):
            return meter.made(super().call(context, function, *args, **kwargs))
        if isinstance(owner, Quoted):
            return requoted(meter.made(super().call(context, function, *args, **kwargs)))
        args = tuple(map(writer.written, args))
        kwargs = {name: writer.written(value) for name, value in kwargs.items()}
        return meter.made(super().call(context, function, *args, **kwargs))


def _limit_bits(bits: int) -> None:
    if bits > _MOST_BITS:
        raise SecurityError(f"the template makes numbers of more than {_MOST_BITS:,} bits")


def _limit(size: int) -> None:
    if size > _MOST_REPEAT:
        raise SecurityError(f"the template repeats to {size:,}; the limit is {_MOST_REPEAT:,}")


@lru_cache(maxsize=1)
def sandbox() -> Environment:
    """The sandbox for chat templates, as transformers sets it up."""
    return sandbox_of(Sandbox, trim_blocks=True, lstrip_blocks=True)


def sandbox_of(kind: type[Sandbox], **options: Any) -> Environment:
    """A sandbox of this kind, with the filters, tests and functions that all of them have."""
    environment = kind(extensions=[_GenerationTag, loopcontrols], **options)
    environment.filters = metered_filters()
    for name in (*_COMPARING, *_COMPARING_SIGNS):
        compare: Any = environment.tests[name]
        environment.tests[name] = metered_test(compare)
    environment.globals.pop("lipsum")
    environment.globals.update(
        raise_exception=_raise,
        strftime_now=_strftime_now,
        namespace=_namespace,
        dict=_dict,
        range=_range,
    )
    return environment


def check_source(source: str) -> None:
    """Raise if a template is too long to be compiled."""
    if len(source) > _MOST_SOURCE:
        raise SecurityError(f"it has {len(source):,} characters; at most {_MOST_SOURCE:,} are read")


def render(template: Template, variables: Mapping[str, Any], writer: Writer | None = None) -> str:
    """The template's text, within the budget of one rendering."""
    context = template.new_context(dict(variables))
    if isinstance(context, MeteredContext):
        context.writer = writer
    return "".join(template.root_render_func(context))
