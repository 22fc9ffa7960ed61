"""Where code or data that is not ours is run or read, what it raises becomes an error of ours.

Libraries written in Rust panic, and a panic reaches Python as a BaseException that no
`except Exception` sees. Ctrl-C and the end of the process are no errors and pass.
"""

from __future__ import annotations

from collections.abc import Callable

from quire.errors import QuireError

PASSES = (QuireError, KeyboardInterrupt, SystemExit, GeneratorExit)
_LONGEST_REASON = 300


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
