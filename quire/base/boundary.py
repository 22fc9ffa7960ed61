"""Where code or data of others is run or read, what it raises becomes an error of ours.

Libraries written in Rust panic, and a panic reaches Python as a BaseException that no
`except Exception` sees. Ctrl-C and the end of the process are no errors and pass.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any, TypeVar

from quire.base.notes import note
from quire.errors import EngineError, QuireError, RowError

PASSES = (QuireError, KeyboardInterrupt, SystemExit, GeneratorExit)
_LONGEST_REASON = 300
Made = TypeVar("Made")


def reason(error: BaseException) -> str:
    """An error's text, short enough for a message; its type where it has no text."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, MemoryError):
        return "there is not enough memory for it"
    try:
        said = str(error)
    except Exception:  # the error's own __str__ is code of others, too
        said = ""
    return said[:_LONGEST_REASON] or type(error).__name__


_MOST_FAULTS = 64  # different ones that are noted; each is noted once, however many rows it meets
_faults: set[str] = set()


def for_row(doing: str, make: Callable[..., Made], *args: Any, **more: Any) -> Made | QuireError:
    """What the call makes for one row, or the error that this row ends with, whatever was raised:
    other rows go on."""
    try:
        return make(*args, **more)
    except BaseException as error:  # fault_of_row raises it again where no row is to blame
        return fault_of_row(error, doing)


def fault_of_row(error: BaseException, doing: str) -> QuireError:
    """The error that a row ends with when `error` was raised while something was done for it alone.
    Errors about the whole process (EngineError, out of memory, Ctrl-C, exit) are raised again.

    An error that is not a QuireError is a fault of the code. Its place is noted, but not its text,
    which may quote the row."""
    # A BaseException that is not an Exception ends the process, except a panic of Rust.
    is_panic = type(error).__name__ == "PanicException"
    about_row = is_panic or isinstance(error, Exception)
    if not about_row or isinstance(error, MemoryError | EngineError):
        raise error
    if isinstance(error, QuireError):
        return error
    kind, frames = type(error).__name__, traceback.extract_tb(error.__traceback__)
    places = ", ".join(f"{one.filename}:{one.lineno} {one.name}" for one in frames)
    fault = f"{kind} while {doing} (last call last: {places})"
    if fault not in _faults and len(_faults) < _MOST_FAULTS:
        _faults.add(fault)
        note(f"a row failed, the others go on: {fault}")
    # The message leaves the text out, too: the row's answer may go to another machine.
    made = RowError(f"this row failed while {doing}: {kind}")
    made.__cause__ = error
    return made


class refusing:  # noqa: N801 - read as a word: `with refusing(...)`
    """Raise `refuse(reason)` for errors raised inside that are not ours."""

    __slots__ = ("_refuse",)

    def __init__(self, refuse: Callable[[str], QuireError]) -> None:
        self._refuse = refuse

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and not isinstance(error, PASSES):
            raise self._refuse(reason(error)) from error
