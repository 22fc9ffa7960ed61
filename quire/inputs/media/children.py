"""Decodes encoded media in separate processes: untrusted bytes that crash a library end only one of
them, and fail only one row.

Each process has one decoder (decoders.py) and one item at a time. It has limits on memory,
processor time and real time, and can open neither files nor sockets (child.py). `start` may start
one early. The first item starts as many as items are likely, at most one per processor; one more
may start for headers. They stay for later items until their owner closes them. An idle one gets an
item as an open file, and answers on a socket with lines of JSON and the bytes of arrays.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from itertools import islice
from math import prod
from pathlib import Path
from threading import Condition, Thread
from typing import Any, BinaryIO

import numpy as np

from quire.base.cores import usable_cores
from quire.base.line_child import import_paths
from quire.errors import EngineError, InvalidPrompt, NotSupported, QuireError
from quire.inputs.media.allowed import WORDS, bad_medium
from quire.inputs.media.decoders import DECODERS
from quire.inputs.media.files import open_file

MOST_CHILDREN = 8  # processes for each decoder
HEADER = "about"  # the task that reads only a header
MOST_HEADERS = 1 << 16  # results that are remembered, of a few hundred bytes each
LEAST_SECONDS = 60.0  # the limit of processor time for one item, unless it is large
PATIENCE = 4  # the limit of real time for an item, as a multiple of its processor time
_MOST_ARRAY, _MOST_LINE = 1 << 30, 1 << 20  # bytes
_START_SECONDS = 60.0
_PROGRAM = f"{__package__}.child"
_KEPT = ("PATH", "LANG", "LC_", "LD_", "DYLD_", "PYTHON", "TMPDIR", "VIRTUAL_ENV")  # of variables
# Errors of reading an invalid line: a decoder that was taken over may send anything.
_NO_ANSWER = (ValueError, TypeError, KeyError, IndexError, OverflowError, RecursionError)
_ALONE = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MALLOC_ARENA_MAX"), "1")


class MediaChildren:
    """The decoding processes of one owner, which closes them."""

    def __init__(self, most: int | None = None, seconds: float = LEAST_SECONDS) -> None:
        """At most `most` processes of each decoder decode at once. One more may read headers, for
        which the engine waits. `seconds` is the lowest limit of processor time for an item."""
        self._most = most or min(MOST_CHILDREN, usable_cores())
        self._seconds, self._changed = seconds, Condition()
        self._idle: dict[str, list[_Child]] = {decoder: [] for decoder in DECODERS}
        self._count, self._decoding = dict.fromkeys(DECODERS, 0), dict.fromkeys(DECODERS, 0)
        self._starting, self._waiting = dict.fromkeys(DECODERS, 0), dict.fromkeys(DECODERS, 0)
        self._failures: dict[str, QuireError] = {}  # decoder -> why its last start failed
        self._busy: set[_Child] = set()  # also processes that are starting
        self.likely = 1  # the number of items that probably come together
        self._headers: OrderedDict[tuple[str, bytes], Any] = OrderedDict()
        self._closed = False

    def ask(
        self, decoder: str, task: str, data: bytes | Path, *, seconds: float = 0.0, **about: Any
    ) -> Iterator[Any]:
        """The answers of a task of child.py for an item, one after the other. `seconds` is its
        limit of processor time."""
        if find_spec(DECODERS[decoder].package) is None:
            raise NotSupported(DECODERS[decoder].missing)
        seconds += self._seconds
        with _as_file(data) as file:
            decodes = task != HEADER
            child = self._taken(decoder, decodes)
            try:
                yield from child.answers({"task": task, "seconds": seconds, **about}, file)
            finally:
                self._give_back(child, decodes)

    def header(self, decoder: str, data: bytes, content: bytes, **about: Any) -> Any:
        """The facts in an item's header. Items of equal `content` share one reading."""
        known = (decoder, content)
        with self._changed:
            if known in self._headers:
                self._headers.move_to_end(known)
                return self._headers[known]
        if not data:
            raise bad_medium(DECODERS[decoder].kind, "has no bytes")
        found = self.one(decoder, HEADER, data, **about)
        with self._changed:
            self._headers[known] = found
            if len(self._headers) > MOST_HEADERS:
                self._headers.popitem(last=False)
        return found

    def one(self, decoder: str, task: str, data: bytes | Path, **about: Any) -> Any:
        """The only answer of a task that gives exactly one."""
        answers = list(islice(self.ask(decoder, task, data, **about), 2))
        if len(answers) != 1:
            raise _taken_over(DECODERS[decoder].kind)
        return answers[0]

    def close(self) -> None:
        """End all processes, also busy ones; a second call does nothing."""
        with self._changed:
            self._closed = True
            self._headers.clear()
            ended = [*self._busy, *(child for some in self._idle.values() for child in some)]
            for some in self._idle.values():
                some.clear()
            self._changed.notify_all()
        for child in ended:
            child.end()

    def __enter__(self) -> MediaChildren:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, decoder: str) -> None:
        """Start one process for the first item, without waiting; that item starts the others."""
        if find_spec(DECODERS[decoder].package) is not None:
            with self._changed:
                self._start(decoder, 1)

    def _taken(self, decoder: str, decodes: bool) -> _Child:
        with self._changed:
            while decodes and self._decoding[decoder] >= self._most and not self._closed:
                self._changed.wait()
            if not self._waiting[decoder]:
                self._failures.pop(decoder, None)  # an old failure, of another item
            self._start(decoder, min(self.likely, self._most))
            self._decoding[decoder] += decodes
            self._waiting[decoder] += 1
            try:
                child = self._first_idle(decoder)
            except BaseException:
                self._decoding[decoder] -= decodes
                self._changed.notify_all()
                raise
            finally:
                self._waiting[decoder] -= 1
            self._busy.add(child)
            return child

    def _first_idle(self, decoder: str) -> _Child:
        """An idle process, after waiting for one. It may have been started for another item."""
        while not self._idle[decoder]:
            if self._closed:
                raise _closed()
            if not self._count[decoder] and decoder in self._failures:
                raise self._failures.pop(decoder)
            at_work = self._count[decoder] - self._starting[decoder]
            self._start(decoder, at_work + self._waiting[decoder])
            if self._count[decoder]:
                self._changed.wait()
        return self._idle[decoder].pop()

    def _start(self, decoder: str, count: int) -> None:
        """Start processes up to `count` and the limit. The caller holds the lock."""
        while self._count[decoder] < min(count, self._most + 1) and not self._closed:
            try:
                child = _Child(decoder)
            except EngineError as error:
                self._note(decoder, error)
                return
            self._busy.add(child)
            self._count[decoder] += 1
            self._starting[decoder] += 1
            Thread(target=self._await, args=(child,), name="quire-decoder", daemon=True).start()

    def _await(self, child: _Child) -> None:
        """Wait until the process is ready or has failed."""
        failure: QuireError | None = None
        try:
            child.await_ready()
        except (EngineError, NotSupported) as error:
            failure = error
        with self._changed:
            self._starting[child.decoder] -= 1
        self._give_back(child, False, failure)

    def _note(self, decoder: str, failure: QuireError) -> None:
        """Handle a failed start: if no process is left, waiting items raise this error."""
        self.likely = 1
        if not self._count[decoder]:
            self._failures[decoder] = failure

    def _give_back(self, child: _Child, decodes: bool, failure: QuireError | None = None) -> None:
        with self._changed:
            self._busy.discard(child)
            if child.is_idle and not self._closed:
                self._idle[child.decoder].append(child)
                self._decoding[child.decoder] -= decodes
                self._changed.notify_all()
                return
        child.end()
        with self._changed:
            self._count[child.decoder] -= 1
            self._decoding[child.decoder] -= decodes
            if failure is not None:
                self._note(child.decoder, failure)
            self._changed.notify_all()


class _Child:
    """One process, and the parent's end of its socket."""

    def __init__(self, decoder: str) -> None:
        self.decoder, self.medium, self.is_idle = decoder, DECODERS[decoder].kind, False
        kept = {name: text for name, text in os.environ.items() if name.startswith(_KEPT)}
        self._socket, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", _PROGRAM, decoder],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env={**kept, **_ALONE, "PYTHONPATH": import_paths()},
                )
            except OSError as error:  # no memory, or no more processes
                self._socket.close()
                raise _not_started(decoder, str(error)) from None
        self._incoming = self._socket.makefile("rb")

    def await_ready(self) -> None:
        """Wait until it is ready; to be called once, before the first task."""
        self._socket.settimeout(_START_SECONDS)
        head: dict[str, Any] = {}
        with suppress(EOFError, OSError, *_NO_ANSWER):
            head = self._head()
        self.is_idle = "last" in head
        if "missing" in head:
            raise NotSupported(f"{DECODERS[self.decoder].missing} ({str(head['missing'])[:200]})")
        if not self.is_idle:
            program = f"{sys.executable} -m {_PROGRAM}"
            raise _not_started(self.decoder, f"see whether `{program}` runs")

    def answers(self, task: dict[str, Any], file: BinaryIO) -> Iterator[Any]:
        """The answers of one task; InvalidPrompt if the item caused any kind of failure."""
        self.is_idle = False
        seconds: float = task["seconds"]
        left = PATIENCE * seconds
        try:
            socket.send_fds(self._socket, [json.dumps(task).encode() + b"\n"], [file.fileno()])
            while True:
                begun = time.monotonic()
                self._socket.settimeout(max(left, 0.001))
                answer = self._next()
                left -= time.monotonic() - begun  # only time spent waiting for answers counts
                if answer is None:
                    return
                if not isinstance(answer, dict if task["task"] == HEADER else np.ndarray):
                    raise TypeError
                yield answer
        except TimeoutError:
            why = f"was not decoded within {PATIENCE * seconds:g} s"
            raise bad_medium(self.medium, why) from None
        except (EOFError, OSError):
            raise bad_medium(self.medium, self._cause(seconds)) from None
        except QuireError:
            raise
        except _NO_ANSWER:
            raise _taken_over(self.medium) from None

    def _head(self) -> dict[str, Any]:
        line = self._incoming.readline(_MOST_LINE)
        if not line.endswith(b"\n"):
            raise ValueError if len(line) == _MOST_LINE else EOFError
        return dict(json.loads(line))

    def _next(self) -> Any:
        """The next answer, an array or a dictionary; None after the last one."""
        head = self._head()
        if "array" in head:
            dtype, shape = np.dtype(head["array"][0]), tuple(map(int, head["array"][1]))
            if dtype.kind not in "uif" or min(shape, default=0) < 0:
                raise ValueError
            if dtype.itemsize * prod(shape) > _MOST_ARRAY:
                raise bad_medium(self.medium, f"has more than {_MOST_ARRAY:,} bytes")
            made = np.empty(shape, dtype)
            if self._incoming.readinto(made.reshape(-1).view(np.uint8).data) != made.nbytes:
                raise EOFError
            return made
        if "found" in head:
            return head["found"]
        self.is_idle = not head["last"]
        if "refused" in head:
            raise InvalidPrompt(str(head["refused"]), parameter="multi_modal_data")
        if "missing" in head:
            raise NotSupported(str(head["missing"]))
        return None

    def _cause(self, seconds: float) -> str:
        """Why the process ended, from its exit status."""
        try:
            # The socket closes a moment before the process is gone.
            status = self._process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            return "was not decoded: its process no longer answers"
        if status == -signal.SIGXCPU:
            return f"takes more than {seconds:g} s of processor time to decode"
        if status == -signal.SIGKILL:
            return "was not decoded: its process was killed, as when a machine has no more memory"
        how = signal.Signals(-status).name if status < 0 else f"status {status}"
        return f"ended its decoder ({how}): the file is broken, or made to do so"

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        with suppress(OSError):
            self._incoming.close()
        self._socket.close()


def _as_file(data: bytes | Path) -> BinaryIO:
    """An open file that holds these bytes, or the regular file at this path."""
    if isinstance(data, Path):
        return open_file(data)
    if hasattr(os, "memfd_create"):
        file: BinaryIO = os.fdopen(os.memfd_create("quire-media", os.MFD_CLOEXEC), "w+b")
    else:
        file = tempfile.TemporaryFile()  # noqa: SIM115
    file.write(data)
    file.seek(0)
    return file


def _taken_over(medium: str) -> InvalidPrompt:
    return bad_medium(medium, "made its decoder say what none says: it is made to do so")


def _closed() -> EngineError:
    return EngineError("media were to be decoded after their LLM was closed.")


def _not_started(decoder: str, why: str) -> EngineError:
    return EngineError(
        f"the process that decodes {WORDS[DECODERS[decoder].kind][1]} did not start: {why}"
    )
