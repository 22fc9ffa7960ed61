"""All output of commands to the terminal goes through here and is made safe.

Rows, answers and names in a job or a model come from other people; an escape sequence in them is
printed as text. Nothing else in this room prints.
"""

from __future__ import annotations

import json
import os
import select
import sys
from typing import Any, TextIO

import typer

from quire.base.notes import tell
from quire.safe_text import shown, shown_json, without_secrets


def say(text: str, *, err: bool = False) -> None:
    """Print lines for a person; on stderr, which may go to a log, without secrets."""
    if err:
        tell(shown(without_secrets(text)), sys.stderr)
    else:
        typer.echo(shown(text))


def reader_is_gone() -> bool:
    """Whether the process that read our stdout has left, as `head` does after its last line."""
    if not hasattr(select, "poll"):  # on Windows: only a failing write tells
        return True
    try:
        watched = select.poll()
        watched.register(sys.stdout.fileno(), select.POLLOUT)
        return any(seen & (select.POLLERR | select.POLLHUP) for _, seen in watched.poll(0))
    except (AttributeError, OSError, ValueError):  # there is no stdout, or it is no file
        return False


def leave_nothing_unsaid() -> None:
    """Drop output that stdout or stderr did not accept: else Python would try it once more at its
    end, complain, and exit with its own code."""
    for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
        _flush_or_drop(stream, number)


def _flush_or_drop(stream: TextIO | None, number: int) -> None:
    try:
        if stream is not None:
            stream.flush()
    except (OSError, ValueError):
        drop_from_now_on(number)


def drop_from_now_on(number: int) -> None:
    """Of stdout (1) or stderr (2), also what is still in its buffer."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), number)


def say_coloured(text: str) -> None:
    """Print lines with our own colours; the texts in them must be safe already."""
    typer.echo(text)


def say_json(value: Any) -> None:
    """Print one JSON value on one line, for a program."""
    typer.echo(shown_json(value if isinstance(value, str) else json.dumps(value)))


def answer(text: str) -> None:
    """Print a model's text: unchanged into a file or a pipe, made safe on a terminal."""
    print(shown(text) if sys.stdout.isatty() else text, flush=True)
