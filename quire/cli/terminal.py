"""The one door from a command to the terminal: what goes through is safe to show.

Rows, answers and the names in a job or a model are other people's texts; an escape sequence in
one of them is written out instead of acted on. Nothing else in this room prints.
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
    """Lines for a person; on stderr, where they may end in a log, without secrets."""
    if err:
        tell(shown(without_secrets(text)), sys.stderr)
    else:
        typer.echo(shown(text))


def leave_nothing_unsaid() -> None:
    """What stderr has not taken is dropped, or Python would leave with a code of its own."""
    try:
        if sys.stderr is not None:
            sys.stderr.flush()
    except (OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def say_coloured(text: str) -> None:
    """Lines with colours of our own; whatever stands between them was made safe before."""
    typer.echo(text)


def say_json(value: Any) -> None:
    """One JSON object on one line, for a program; the same whatever reads it."""
    typer.echo(shown_json(value if isinstance(value, str) else json.dumps(value)))


def answer(text: str) -> None:
    """What a model wrote: byte for byte into a file or a pipe, safe on a terminal."""
    print(shown(text) if sys.stdout.isatty() else text)
