"""Where code or data that is not ours is run or read, what it raises becomes an error of ours.

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
    """What an error says, short enough for a message; its type where it says nothing."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, MemoryError):
        return "there is not enough memory for it"
    try:
        said = str(error)
    except Exception:  # the error's own __str__ is code of others, too
        said = ""
    return said[:_LONGEST_REASON] or type(error).__name__


_MOST_FAULTS = 64  # that are noted; the same one is noted once, however many rows it meets
_faults: set[str] = set()


def for_row(doing: str, make: Callable[..., Made], *args: Any, **more: Any) -> Made | QuireError:
    """What the call makes for one row alone, or the error that this row ends with: the others go
    on, whatever it is."""
    try:
        return make(*args, **more)
    except BaseException as error:  # see below
        return fault_of_row(error, doing)


def fault_of_row(error: BaseException, doing: str) -> QuireError:
    """What was raised while something was done for one row alone, as the error that it ends with.
    What is about the process is raised again.

    What is no error of ours is a fault: where it came from is noted, and not what it says, which
    may quote the row."""
    # A panic aside, what is no Exception ends the process.
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
    # Nor does the message say it: the row's answer may go to another machine.
    made = RowError(f"this row failed while {doing}: {kind}")
    made.__cause__ = error
    return made


class refusing:  # noqa: N801 - read as a word: `with refusing(...)`
    """Raise `refuse(reason)` for whatever is raised inside that is no error of ours."""

    __slots__ = ("_refuse",)

    def __init__(self, refuse: Callable[[str], QuireError]) -> None:
        self._refuse = refuse

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and not isinstance(error, PASSES):
            raise self._refuse(reason(error)) from error
