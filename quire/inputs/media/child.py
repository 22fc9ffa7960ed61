"""The process that decodes media: `python -m quire.inputs.media.child DECODER`.

Its standard input is a socket. A task is a line of JSON with an open file beside it; the answers to
it are lines too. The bytes of an array follow its line. The last line says how the task ended:

  {"task": "pixels", "seconds": 60.0, "turn": null}
  {"array": ["|u1", [480, 640, 3]]}, 921,600 bytes
  {"found": {"size": [640, 480], "turn": null}}
  {"last": false}  or with "refused": "is cut short", "missing": "... needs the package av"

Everything that tasks need is imported before the first task. Then limits are set: on memory beyond
the present use, and on open files, of which one more is allowed, for the task's file. An attacker
who takes over a decoder can therefore open neither files nor sockets. A task that exceeds its
processor time ends the process.
"""

from __future__ import annotations

import codecs
import json
import math
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, BinaryIO

import numpy as np

from quire.base.system import held_memory, lower_limit
from quire.errors import InvalidPrompt, NotSupported
from quire.inputs.media.allowed import bad_medium
from quire.inputs.media.decoders import DECODERS

_MOST_LINE = 1 << 20
_CODECS = ("ascii", "latin-1", "cp1252", "utf-16", "utf-16-be", "utf-16-le")  # for the text of tags
Task = Callable[..., Iterator[Any]]


def main() -> None:
    name = sys.argv[1]
    kind, memory = DECODERS[name].kind, DECODERS[name].memory
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    theirs = socket.socket(fileno=0)
    for codec in _CODECS:
        codecs.lookup(codec)
    try:
        tasks: dict[str, Task] = import_module(DECODERS[name].module).tasks()
    except (ImportError, OSError) as error:  # OSError: a shared library is missing
        _send(theirs, {"missing": str(error)})
        return
    _limit_memory(memory)
    _limit_files()
    _send(theirs, {"last": False})
    while (received := _received(theirs)) is not None:
        given, file = received
        with file:
            _limit_time(given.pop("seconds"))
            try:
                end = _answered(theirs, tasks[given.pop("task")], file, given)
            except MemoryError:  # this process ends, so the next item starts with free memory
                text = bad_medium(kind, f"takes more than {memory >> 20:,} MiB to decode").message
                end = {"refused": text, "last": True}
            except (BrokenPipeError, ConnectionResetError):
                return  # the parent has closed the socket
            except Exception as error:  # decoders may raise anything for untrusted bytes
                why = f"cannot be read: {type(error).__name__}: {str(error)[:200]}"
                end = {"refused": bad_medium(kind, why).message, "last": False}
        _send(theirs, end)
        if end["last"]:
            return


def _answered(
    theirs: socket.socket, task: Task, file: BinaryIO, given: dict[str, Any]
) -> dict[str, Any]:
    """Run a task and send its answers; returns the last message, which says how it ended."""
    try:
        for answer in task(file, **given):
            if isinstance(answer, np.ndarray):
                whole = np.ascontiguousarray(answer)
                _send(theirs, {"array": [whole.dtype.str, whole.shape]})
                theirs.sendall(whole.reshape(-1).view(np.uint8).data)
            else:
                _send(theirs, {"found": answer})
    except InvalidPrompt as error:
        return {"refused": error.message, "last": False}
    except NotSupported as error:
        return {"missing": str(error), "last": False}
    return {"last": False}


def _send(theirs: socket.socket, message: dict[str, Any]) -> None:
    theirs.sendall(json.dumps(message).encode() + b"\n")


def _received(theirs: socket.socket) -> tuple[dict[str, Any], BinaryIO] | None:
    """The next task and its file; None if there are no more."""
    line, handles, _, _ = socket.recv_fds(theirs, _MOST_LINE, 1)
    while line and not line.endswith(b"\n"):
        more = theirs.recv(_MOST_LINE)
        line = line + more if more else b""
    if not line or not handles:
        return None
    task: dict[str, Any] = json.loads(line)
    return task, os.fdopen(handles[0], "rb")


def _limit_memory(more: int) -> None:
    held = held_memory()
    if held is not None:  # without Linux's /proc, only time is limited
        lower_limit(resource.RLIMIT_AS, held + more)


def _limit_files() -> None:
    """Allow one more open file: the limit is the first free descriptor."""
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, free + 1))


def _limit_time(seconds: float) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    lower_limit(resource.RLIMIT_CPU, math.ceil(used.ru_utime + used.ru_stime + seconds))


if __name__ == "__main__":
    main()
