"""Arguments that name something: an empty one, as of a shell's variable that is not set, is refused
by its name. Read as a path it would mean the folder that the command is run in.

The names of the parsers, `path` and `directory`, stand in the help as kinds of values.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import typer

Given = TypeVar("Given", str, str | None)


def path(given: str | Path) -> Path:
    """For `typer.Option(parser=path)`; a default comes as the Path that it is."""
    if given == "":
        raise typer.BadParameter("it is empty and names no file; the present folder is a dot")
    return Path(given)


def directory(given: str | Path) -> Path:
    found = path(given)
    if not found.is_dir():
        raise typer.BadParameter(f"{given} is no folder that is there; make it first")
    return found


def named(given: Given) -> Given:
    """For `typer.Argument(callback=named)` of a model."""
    if given == "":
        raise typer.BadParameter("it is empty; give an alias (smollm2), a path or a Hub id")
    return given
