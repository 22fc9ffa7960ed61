"""What quire prints besides its results: notes on the logger `quire`, and QuireWarnings.

A program that configured logging gets the notes there; otherwise each is one line on stderr,
never on stdout. QUIRE_LOG=error silences them. Prompts and outputs never come through here.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from contextlib import suppress
from typing import TextIO

from quire.errors import QuireWarning
from quire.safe_text import one_line, without_secrets

logger = logging.getLogger("quire")
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# Notes are INFO. These values of QUIRE_LOG silence them; an unknown value does not.
_SILENT = frozenset({"warning", "warn", "error", "critical", "fatal", "off", "none"})


def note(line: str) -> None:
    """Write one line about what was chosen or what is going on."""
    text = one_line(without_secrets(line))
    if logger.hasHandlers() or logger.level != logging.NOTSET:
        logger.info("%s", text)
    elif os.environ.get("QUIRE_LOG", "").strip().lower() not in _SILENT:
        tell(f"quire: {text}", sys.stderr)


def tell(text: str, stream: TextIO | None) -> None:
    """Write a line to stderr, or nothing if that fails: a log on a full disk, or a terminal that
    was closed, must not end the work that the line is about."""
    if stream is not None:  # sys.stderr is None in a process started without one
        with suppress(OSError, ValueError):
            print(text, file=stream, flush=True)


def warn(line: str) -> None:
    """Warn with a QuireWarning that points at the caller's line, not at one of ours."""
    warnings.warn(one_line(without_secrets(line)), QuireWarning, stacklevel=_frames_inside())


def _frames_inside() -> int:
    """The stacklevel, seen from `warn`, of the first frame outside this package.

    A dataclass's __init__ has the file name "<string>", so it counts as inside too.
    """
    level = 2
    frame = sys._getframe(2)
    while frame.f_back is not None and (
        frame.f_code.co_filename.startswith(_PACKAGE) or frame.f_code.co_filename == "<string>"
    ):
        frame = frame.f_back
        level += 1
    return level
