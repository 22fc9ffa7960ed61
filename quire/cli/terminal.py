"""All output of commands to the terminal goes through here and is made safe.

Rows, answers and names in a job or a model come from other people; an escape sequence in them is
printed as text. Nothing else in this room prints.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import typer

from quire.base.notes import tell
from quire.safe_text import shown, shown_json, without_secrets


def say(text: str, *, err: bool = False) -> None:
    """Print lines for a person; on stderr, which may go to a log, without secrets."""
    if err:
        tell(shown(without_secrets(text)), sys.stderr)
    else:
        typer.echo(shown(text))


def leave_nothing_unsaid() -> None:
    """Drop output that stderr did not accept: else Python would exit with its own code."""
    try:
        if sys.stderr is not None:
            sys.stderr.flush()
    except (OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def say_coloured(text: str) -> None:
    """Print lines with our own colours; the texts in them must be safe already."""
    typer.echo(text)


def say_json(value: Any) -> None:
    """Print one JSON value on one line, for a program."""
    typer.echo(shown_json(value if isinstance(value, str) else json.dumps(value)))


def answer(text: str) -> None:
    """Print a model's text: unchanged into a file or a pipe, made safe on a terminal."""
    print(shown(text) if sys.stdout.isatty() else text)
