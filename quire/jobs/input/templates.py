"""The user's own templates over the columns of a row: `--prompt`, `--where`, continuations.

The same sandbox as for chat templates, but strict: a column that is not there is an error of
that row, never an empty string. `row` is the whole row, for names that are no identifiers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from jinja2.exceptions import UndefinedError

from quire.base.boundary import PASSES, reason, refusing
from quire.errors import InvalidOption
from quire.inputs.sandbox import check_source, render, strict_sandbox
from quire.jobs.input.rows import BadRow

T = TypeVar("T")


class RowTemplate:
    """A text with columns in it, compiled."""

    def __init__(self, source: str, option: str) -> None:
        self._option = option
        with refusing(lambda why: _does_not_compile(option, source, why)):
            check_source(source)
            self._template = strict_sandbox().from_string(source)

    def render(self, row: Mapping[str, Any]) -> str:
        """The text for this row; raises BadRow."""
        return _of_row(self._option, lambda: render(self._template, {"row": row, **row}))


class RowTest:
    """An expression that says which rows count."""

    def __init__(self, source: str, option: str) -> None:
        self._option = option
        with refusing(lambda why: _does_not_compile(option, source, why)):
            check_source(source)
            self._test = strict_sandbox().compile_expression(source, undefined_to_none=False)

    def holds(self, row: Mapping[str, Any]) -> bool:
        """Whether it is true of this row; raises BadRow where it cannot be told."""
        return _of_row(self._option, lambda: bool(self._test({"row": row, **row})))


def _of_row(option: str, make: Callable[[], T]) -> T:
    try:
        return make()
    except PASSES:
        raise
    except BaseException as error:  # a row's values may be any objects of a library
        kind = "missing_column" if isinstance(error, UndefinedError) else "template_error"
        raise BadRow(kind, f"{option} cannot be made of this row: {reason(error)}") from None


def _does_not_compile(option: str, source: str, why: str) -> InvalidOption:
    return InvalidOption(
        f"{option} does not compile: {why.rstrip('.')}. It is Jinja over the columns of the input, "
        'such as "Translate: {{ text }}" for a prompt or "score > 3" for --where.',
        parameter=option,
        value=source,
    )
