"""A process that is forked off pytest's, as if Python had begun anew with all these imports."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import warnings
from pathlib import Path
from typing import Protocol

_ROOT = str(Path(__file__).resolve().parents[1])
# What Python begins with, the last one first.
_IGNORED = (ResourceWarning, ImportWarning, PendingDeprecationWarning, DeprecationWarning)


class Process(Protocol):
    def kill(self) -> None: ...

    def wait(self) -> int: ...


class Forked:
    """A child of this process, by its number."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def kill(self) -> None:
        os.kill(self._pid, signal.SIGKILL)

    def wait(self) -> int:
        return os.waitpid(self._pid, 0)[1]


def leave_behind(kept: int) -> None:
    """Right after the fork: what pytest opened, but for the file `kept`, and what it set."""
    faulthandler.disable()
    _leave_files(kept)
    sys.excepthook, sys.unraisablehook = sys.__excepthook__, sys.__unraisablehook__
    threading.excepthook = threading.__excepthook__
    sys.meta_path[:] = [one for one in sys.meta_path if not _is_pytests(type(one).__module__)]
    listed = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    rest = [folder for folder in sys.path if folder not in ("", _ROOT, *listed)]
    sys.path[:] = ["", *filter(None, listed), *rest]
    warnings.resetwarnings()
    for category in _IGNORED:
        warnings.simplefilter("ignore", category)
    warnings.filterwarnings("default", category=DeprecationWarning, module="__main__")


def _leave_files(kept: int) -> None:
    for number in map(int, os.listdir("/proc/self/fd")):
        if number > 2 and number != kept and os.path.lexists(f"/proc/self/fd/{number}"):
            os.close(number)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    os.close(nothing)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115


def _is_pytests(module: str) -> bool:
    return module.split(".")[0] in ("_pytest", "pytest")
