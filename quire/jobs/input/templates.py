"""The user's own templates over the columns of a row: `--prompt`, `--where`, continuations.

The same sandbox as for chat templates, but strict: a column that is not there, and a null that
would be written out, is an error of that row, never an empty string or "None". `row` is the whole
row, for names that are no identifiers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeVar

from jinja2 import Environment, StrictUndefined, TemplateError, is_undefined
from jinja2.exceptions import UndefinedError
from jinja2.meta import find_undeclared_variables
from jinja2.nodes import TemplateData
from jinja2.runtime import TemplateReference

from quire.base.boundary import PASSES, reason, refusing
from quire.errors import InvalidOption
from quire.inputs.sandbox import Sandbox, check_source, render, sandbox_of
from quire.jobs.input.rows import BadRow

T = TypeVar("T")


class _NullWritten(TemplateError):
    """A template would write a null into a prompt."""


class _RowSandbox(Sandbox):
    def getattr(self, obj: Any, attribute: str) -> Any:
        """For a dict its entry comes before a method: `row.items` is the column of that name."""
        if isinstance(obj, Mapping) and attribute in obj:
            return obj[attribute]
        return super().getattr(obj, attribute)

    def check_written(self, value: Any) -> None:
        """A null is refused: a prompt should not hold the word None by accident. Methods, macros
        and templates are refused too: their text is a memory address."""
        if value is None:
            raise _NullWritten(
                "it writes a null; say what stands in its place, as in {{ text or 'unknown' }}"
            )
        if is_undefined(value) or not (callable(value) or isinstance(value, TemplateReference)):
            return
        raise TemplateError(
            f"it writes a {type(value).__name__} and no value; call it, or name a column of such a "
            "name as row['name']"
        )


@lru_cache(maxsize=1)
def _sandbox() -> Environment:
    """A name that is not there is an error, and white space stays as it is written."""
    return sandbox_of(_RowSandbox, undefined=StrictUndefined, keep_trailing_newline=True)


class RowTemplate:
    """A text with columns in it, compiled."""

    def __init__(self, source: str, option: str) -> None:
        self._option = option
        with refusing(lambda why: _does_not_compile(option, source, why)):
            check_source(source)
            self._template = _sandbox().from_string(source)
            tree = _sandbox().parse(source)
            self.names = find_undeclared_variables(tree)
            self.plain = [part.data for part in tree.find_all(TemplateData)]  # between expressions

    def render(self, row: Mapping[str, Any]) -> str:
        """The text for this row; raises BadRow."""
        return _of_row(self._option, lambda: render(self._template, {"row": row, **row}))


class RowTest:
    """An expression that says which rows count."""

    def __init__(self, source: str, option: str) -> None:
        self._option = option
        with refusing(lambda why: _does_not_compile(option, source, why)):
            check_source(source)
            self._test = _sandbox().compile_expression(source, undefined_to_none=False)

    def holds(self, row: Mapping[str, Any]) -> bool:
        """Whether it is true of this row; raises BadRow where it cannot be told."""
        return _of_row(self._option, lambda: bool(self._test({"row": row, **row})))


def _of_row(option: str, make: Callable[[], T]) -> T:
    try:
        return make()
    except PASSES:
        raise
    except BaseException as error:  # a row's values may be any objects of a library
        kinds = {UndefinedError: "missing_column", _NullWritten: "null_value"}
        kind = next((kinds[k] for k in kinds if isinstance(error, k)), "template_error")
        hint = "; what a CSV holds is text: {{ n | int }}" if isinstance(error, TypeError) else ""
        raise BadRow(kind, f"{option} cannot be made of this row: {reason(error)}{hint}") from None


def _does_not_compile(option: str, source: str, why: str) -> InvalidOption:
    return InvalidOption(
        f"{option} does not compile: {why.rstrip('.')}. It is Jinja over the columns of the input, "
        'such as "Translate: {{ text }}" for a prompt or "score > 3" for --where.',
        parameter=option,
        value=source,
    )
