"""The user's own templates over the columns of a row: `--prompt`, `--where`, continuations.

The same sandbox as for chat templates, but strict: a column that is not there is an error of
that row, never an empty string. `row` is the whole row, for names that are no identifiers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jinja2 import TemplateError
from jinja2.exceptions import UndefinedError

from quire.errors import InvalidOption
from quire.inputs.template import FAILURES, bounded, render_bounded, strict_sandbox
from quire.jobs.rows import BadRow


class RowTemplate:
    """A text with columns in it, compiled."""

    def __init__(self, source: str, option: str) -> None:
        self._option = option
        try:
            self._template = strict_sandbox().from_string(source)
        except (TemplateError, RecursionError) as error:
            raise _does_not_compile(option, source, error) from None

    def render(self, row: Mapping[str, Any]) -> str:
        """The text for this row; raises BadRow."""
        try:
            return render_bounded(self._template, {"row": row, **row})
        except (*FAILURES, RecursionError) as error:
            raise _failed(self._option, error) from None


class RowTest:
    """An expression that says which rows count."""

    def __init__(self, source: str, option: str) -> None:
        self._option = option
        try:
            self._test = strict_sandbox().compile_expression(source, undefined_to_none=False)
        except (TemplateError, RecursionError) as error:
            raise _does_not_compile(option, source, error) from None

    def holds(self, row: Mapping[str, Any]) -> bool:
        """Whether it is true of this row; raises BadRow where it cannot be told."""
        try:
            return bool(self._test(bounded({"row": row, **row})))
        except (*FAILURES, RecursionError) as error:
            raise _failed(self._option, error) from None


def _does_not_compile(option: str, source: str, error: BaseException) -> InvalidOption:
    return InvalidOption(
        f"{option} does not compile: {error}. It is Jinja over the columns of the input, "
        'such as "Translate: {{ text }}" for a prompt or "score > 3" for --where.',
        parameter=option,
        value=source,
    )


def _failed(option: str, error: BaseException) -> BadRow:
    kind = "missing_column" if isinstance(error, UndefinedError) else "template_error"
    reason = "it calls itself without end" if isinstance(error, RecursionError) else str(error)
    return BadRow(kind, f"{option} cannot be made of this row: {reason}")
