"""Starts the processes of the ranks, exchanges messages with them, watches them and ends them.

Ranks wait for each other in every layer, so one that died, hangs or computes something else stops
them all. It is noticed by the end of a process, by boards that differ, or by boards that do not
change. Then all ranks are killed; they are never asked to leave.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from quire import errors
from quire.base.launchers import without_launchers
from quire.base.line_child import import_paths
from quire.errors import EngineClosed, EngineError, QuireError, RankDied
from quire.executor.plain_data import from_json, to_json
from quire.executor.ranks.board import Board
from quire.executor.ranks.last_words import LastWords
from quire.executor.ranks.wire import SLOTS, Channel, Kind, Message, Ring, broadcast

SILENCE = 60.0  # seconds without progress of any rank, after which they are ended
SLOW_STEPS = 20  # or so many times the mean duration of a step
READING_SILENCE = 1800.0  # the same while a model is read, which shows no progress
_GRACE = 0.3  # seconds in which other ranks may report errors after one ended
_LOOK = 0.25  # seconds between two reads of the board
_LEAVING = 2.0  # seconds for the last output of killed ranks to arrive


class RankProcesses:
    """Child processes that run `module`, one for each rank, and the messages to and from them."""

    def __init__(
        self, module: str, jobs: Sequence[Mapping[str, object]], *, silence: float = SILENCE
    ) -> None:
        """Each child gets one of `jobs` (plain data), to which `meeting` is added: a file where
        ranks may meet. The file is only in memory, so none is left behind, whatever is killed."""
        self.size, self._silence = len(jobs), silence
        self.board, self._ring = Board.create(self.size), Ring.create()
        meeting = os.memfd_create("quire-meeting")
        # A pipe: a thread of each rank waits at one end; the other end closes with this process.
        held, lifeline = os.pipe()
        self._children: list[subprocess.Popen[bytes]] = []
        self._channels: list[Channel] = []
        self._end = weakref.finalize(self, _end, self._children, lifeline)
        pipes = []
        try:
            for rank in range(self.size):
                child, channel, pipe = _spawn(
                    module, (rank, self.size), (held, meeting), self.board, self._ring
                )
                self._children.append(child)
                self._channels.append(channel)
                pipes.append(pipe)
        except OSError as error:
            self._end()
            raise EngineError(
                f"the processes of {self.size} ranks were not started: {error}"
            ) from error
        finally:
            os.close(held)
            os.close(meeting)
            self._words = LastWords(pipes)
        self._deaths = [os.pidfd_open(child.pid) for child in self._children]
        self._selector = selectors.DefaultSelector()
        for rank, channel in enumerate(self._channels):
            self._selector.register(channel, selectors.EVENT_READ, rank)
            self._selector.register(self._deaths[rank], selectors.EVENT_READ)
        # Sent messages by number, each with the answers so far by rank.
        self._number, self._open = 0, {0: dict[int, Message]()}
        self._complaints: list[_Complaint] = []
        self._failure: QuireError | None = None
        self._seen, self._moved = b"", time.monotonic()
        self._mean_step, self._started = 0.0, False
        for channel, job in zip(self._channels, jobs, strict=True):
            data = to_json({**job, "meeting": f"/proc/self/fd/{meeting}"})
            self._send(Kind.JOB, 0, data, [channel], ring=None)  # its slots are for all ranks

    @property
    def pids(self) -> list[int]:
        return [child.pid for child in self._children]

    @property
    def failed(self) -> bool:
        return self._failure is not None

    def wait_started(self) -> bytes:
        """Wait until all ranks are ready. Returns what the first one reports."""
        data = self.answers(0, reading=True)[0].data
        self._started, self._moved = True, time.monotonic()
        return data

    def tell(self, kind: Kind, data: bytes = b"") -> int:
        """Send all ranks a message. Returns its number."""
        if self._failure is not None:
            raise self._failure
        self._number += 1
        # A slot of the ring is reused when all ranks have answered its earlier message.
        self._wait_for(self._number - SLOTS)
        if not self._open:
            self._moved = time.monotonic()
        self._open[self._number] = {}
        self._send(kind, self._number, data, self._channels, self._ring)
        return self._number

    def answers(self, number: int, *, reading: bool = False) -> dict[int, Message]:
        """Wait for all ranks' answers to a message. `reading`: they read weights meanwhile."""
        begun = time.monotonic()
        self._wait_for(number - 1)  # earlier plans get the usual time
        self._wait_for(number, reading=reading)
        if not reading:
            self._mean_step += (time.monotonic() - begun - self._mean_step) / 8
        return self._open.pop(number)

    def settle(self) -> None:
        """Wait for all outstanding answers, and drop them."""
        self._wait_for(self._number)
        self._open.clear()

    def close(self) -> None:
        """End all ranks. It may be called twice."""
        self._end()
        if self._failure is None:
            self._failure = EngineClosed("the ranks were ended.")
        if not self._channels:
            return
        self._words.wait(_LEAVING)
        self._selector.close()
        for file in self._deaths:
            os.close(file)
        for channel in self._channels:
            channel.close()
        self._channels = []
        self.board.close()
        self._ring.close()

    def _send(
        self, kind: Kind, number: int, data: bytes, channels: Sequence[Channel], ring: Ring | None
    ) -> None:
        try:
            broadcast(channels, kind, number, data, ring)
        except OSError:  # a rank is gone; _fail finds out why
            self._fail("")

    def _wait_for(self, number: int, *, reading: bool = False) -> None:
        """Wait until all ranks have answered this message, if it is still open."""
        while len(self._open.get(number, range(self.size))) < self.size:
            if self._failure is not None:
                raise self._failure
            self._hear(_LOOK)
            self._look(reading=reading)

    def _hear(self, seconds: float) -> None:
        """Read the messages that come within so many seconds. If one ended or has an error, all
        end."""
        is_over = False
        for key, _ in self._selector.select(seconds):
            if key.data is None:
                is_over = True
                continue
            message = self._channels[key.data].receive()
            if message is None:
                self._selector.unregister(key.fileobj)
                is_over = True
            elif message.kind is Kind.ERROR:
                self._complaints.append(_Complaint(key.data, **from_json(message.data)))
            else:
                self._open[message.number][key.data] = message
                self._moved = time.monotonic()  # not every answer changes the board
        if (is_over or self._complaints) and seconds > 0:
            self._fail("")

    def _look(self, *, reading: bool = False) -> None:
        """End all ranks if they disagree or have made no progress for too long."""
        found = self.board.disagreement()
        if found is not None:
            self._fail(found)
        now, seen = time.monotonic(), self.board.movement()
        if seen != self._seen:
            self._seen, self._moved = seen, now
        longest = max(self._silence, SLOW_STEPS * self._mean_step)
        longest = max(longest, READING_SILENCE) if reading else longest
        if now - self._moved > longest:
            self._fail(f"no rank moved for {longest:.0f} s")

    def _fail(self, why: str) -> NoReturn:
        """Kill all ranks, and raise the reason."""
        until = time.monotonic() + _GRACE
        while not why and time.monotonic() < until:  # other ranks may report errors, or die too
            self._hear(0)
            time.sleep(0.01)
        ended = [child.poll() for child in self._children]
        where = self.board.describe()
        self._end()
        self._words.wait(_LEAVING)
        words = [self._words.of(rank) for rank in range(self.size)]
        self._failure = _reason(why, ended, self._complaints, words, where, started=self._started)
        raise self._failure


@dataclass(frozen=True, slots=True)
class _Complaint:
    """The error that a rank reports, and when."""

    rank: int
    type: str
    text: str
    at: float


def _reason(
    why: str,
    ended: Sequence[int | None],
    complaints: Sequence[_Complaint],
    words: Sequence[str],
    where: str,
    *,
    started: bool,
) -> QuireError:
    """The error that ends the engine. A rank that was killed by a signal counts first: the others
    then only report that it is gone."""
    killed = [(rank, -code) for rank, code in enumerate(ended) if code is not None and code < 0]
    first = min(complaints, key=lambda one: one.at, default=None)
    if not why and not killed and first is not None:
        kind = getattr(errors, first.type, None)
        if isinstance(kind, type) and issubclass(kind, QuireError) and not started:
            return kind(first.text)
        if kind is errors.NotEnoughMemory:
            return errors.NotEnoughMemory(first.text)
        why = f"rank {first.rank}: {first.type}: {first.text}"
    if not why and killed:
        names = [f"rank {rank} was killed by {_signal(number)}" for rank, number in killed]
        why = ", ".join(names)
    if not why:
        codes = [f"rank {r} ended with code {c}" for r, c in enumerate(ended) if c is not None]
        why = ", ".join(codes) or "a rank closed its channel"
    said = "; ".join(f"rank {r} wrote {text!r}" for r, text in enumerate(words) if text)
    return RankDied(f"{why}. All {len(ended)} ranks were ended ({where})." + (said and f" {said}."))


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _spawn(
    module: str, place: tuple[int, int], inherited: tuple[int, int], board: Board, ring: Ring
) -> tuple[subprocess.Popen[bytes], Channel, int]:
    """Start a rank. Returns the process, this end of its channel, and the pipe with its output."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening, writing = os.pipe()
    held, meeting = inherited
    numbers = (theirs.fileno(), held, board.file, ring.file)
    kept = without_launchers(os.environ)
    try:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", module, *map(str, (*place, *numbers))],
            stdin=subprocess.DEVNULL,
            stdout=writing,
            stderr=writing,
            pass_fds=(*numbers, meeting),
            env={**kept, "PYTHONPATH": import_paths()},
            process_group=0,  # a Ctrl-C in the terminal goes to the engine's process only
        )
    except OSError:
        ours.close()
        os.close(listening)
        raise
    finally:
        theirs.close()
        os.close(writing)
    return child, Channel(ours, ring), listening


def _end(children: Sequence[subprocess.Popen[bytes]], lifeline: int) -> None:
    for child in children:
        child.kill()
    for child in children:
        child.wait()
    os.close(lifeline)
