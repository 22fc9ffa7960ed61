"""Checks the first rows of an input before a model is loaded: they must have the columns that the
job uses, and no column that the output adds."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import closing
from itertools import islice
from unicodedata import is_normalized

from quire.errors import InvalidOption
from quire.jobs.input.files import InputFile, read_rows
from quire.jobs.input.rows import BadRow, InputRow
from quire.jobs.input.templates import RowTemplate
from quire.jobs.job_parts import make_work
from quire.jobs.options import STDIN, JobOptions
from quire.jobs.store.manifest import Manifest
from quire.jobs.supervise.rows_ahead import RowsAhead
from quire.params.rules import show

NUM_ROWS = 1000
# Errors that show a mistake in the command if all rows have them.
_LACKS = frozenset(("missing_column", "missing_id", "null_value"))
_MOST_NAMED, _LONGEST_NAME = 20, 100


def check_first_rows(options: JobOptions, manifest: Manifest, files: list[InputFile]) -> bool:
    """Whether one of the first rows needs an engine. Raise InvalidOption if a file has a column
    that the output adds, or if the first rows all lack a column that is asked for, or if the whole
    input cannot be read."""
    _refuse_clash(files, manifest.columns)
    _refuse_single_braces(options.prompt, files)
    work = make_work(options, manifest, files, ())
    first: tuple[InputRow, BadRow] | None = None
    num_rows, is_unread = 0, False
    with closing(RowsAhead(work.first_rows(NUM_ROWS), work.evaluation_limit)) as ahead:
        for row, error in ahead.wait():
            if error is None or (error.kind not in _LACKS and row.error is None):
                return error is None
            num_rows, is_unread = num_rows + 1, is_unread or row.error is not None
            first = first or (row, error)
    if first is None or (is_unread and next(islice(read_rows(files), NUM_ROWS, None), None)):
        return False
    unsaid = options.input == (STDIN,) and options.format is None and first[0].error is not None
    raise _unfit(*first, num_rows, is_batch=options.batch, is_unsaid=unsaid)


def _unfit(
    row: InputRow, error: BadRow, num_rows: int, *, is_batch: bool, is_unsaid: bool
) -> InvalidOption:
    which = f"none of the first {num_rows:,} rows" if num_rows > 1 else "the only row that counts"
    can = "can be asked" if num_rows > 1 else "cannot be asked"
    found = f"{which} {can}: {error.message.rstrip('.')}."
    if is_unsaid:
        found += " What comes from stdin is read as JSON lines unless --format says otherwise."
    names = list(row.values or ())
    if names:
        more = f" and {len(names) - _MOST_NAMED:,} more" if len(names) > _MOST_NAMED else ""
        found += f" It has {', '.join(map(_shown, names[:_MOST_NAMED]))}{more}."
    if names and not is_batch:
        found += " Name one of these, or say with --where which rows count."
    return InvalidOption(found, parameter="input", value=error.kind)


def _shown(name: str) -> str:
    """A column's name, escaped where its accents are characters of their own: such a name looks
    like a typed one and differs from it. A template reads it as row["cafe\\u0301"]."""
    return show(name) if is_normalized("NFC", name) else ascii(name[:_LONGEST_NAME])


def _refuse_single_braces(prompt: str | None, files: Sequence[InputFile]) -> None:
    """Refuse a prompt with {column} instead of {{ column }}: it would be equal for all rows."""
    template = RowTemplate(prompt or "", "--prompt")
    first = None if template.names else next(iter(read_rows(files)), None)
    for name in (first.values if first else None) or ():
        if any(f"{{{name}}}" in plain for plain in template.plain):
            raise InvalidOption(
                f"--prompt has {{{name}}} in single braces, which are plain text, and names no "
                f"column, so every row would be asked the same. Write {{{{ {name} }}}}, or "
                f"{{{{ '{{{name}}}' }}}} where the text itself is meant.",
                parameter="prompt",
                value=prompt,
            )


def _refuse_clash(files: Sequence[InputFile], columns: Collection[str]) -> None:
    for file in files:
        first = next(iter(read_rows([file])), None)
        clash = sorted(set(columns) & set((first.values if first else None) or ()))
        if clash:
            raise InvalidOption(
                f"{file.path} has a column {clash[0]!r}, which the output adds. Rename it, or name "
                "the answers' column with --output-column.",
                parameter="output_column",
                value=clash[0],
            )
