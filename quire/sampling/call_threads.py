"""Foreign code in threads of its own, so that a slow call does not block others.

Calls of one lane run one after the other, in the order they came. Lanes run beside each other, in
turn, in a bounded number of threads. An idle thread ends. Threads do not keep the process alive, so
a call that never returns costs only its thread. This module knows neither logits nor torch.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Generic, TypeVar

Made = TypeVar("Made")

MAX_THREADS = 32
IDLE_SECONDS = 2.0  # after which a thread without work ends
# A call that takes longer is given up, with every call that waits after it in its lane.
MAX_SECONDS = 60.0

_here = threading.local()


def on_behalf_of() -> int | None:
    """In a lane's thread: the id of the thread that submitted the running call. Else None."""
    return getattr(_here, "caller", None)


class GivenUp(Exception):
    """The call, or one before it in its lane, ran longer than MAX_SECONDS."""


class Outcome(Generic[Made]):
    """The result of a call: what it returned, or what it raised."""

    __slots__ = ("error", "made")

    def __init__(self, made: Made | None = None, error: BaseException | None = None) -> None:
        self.made, self.error = made, error


def attempt(work: Callable[[], Made]) -> Outcome[Made]:
    """Run foreign code, which may raise any exception."""
    try:
        return Outcome(made=work())
    except Exception as error:
        return Outcome(error=error)


class Call(Generic[Made]):
    """A piece of work in a lane."""

    __slots__ = ("_caller", "_cancelled", "_lane", "_outcome", "_work")

    def __init__(self, lane: _Lane, work: Callable[[], Made]) -> None:
        self._lane, self._work, self._caller = lane, work, threading.get_ident()
        self._outcome: Outcome[Made] | None = None
        self._cancelled = False

    def done(self) -> bool:
        """Whether `outcome` can be read."""
        return self._outcome is not None or self._lane.is_stuck()

    def wait(self, seconds: float) -> None:
        """Wait until a call of the same CallThreads is done, for at most `seconds`."""
        with self._lane.changed:
            if not self.done():
                self._lane.changed.wait(seconds)

    def outcome(self) -> Outcome[Made]:
        """The result of the call, once it is done."""
        if self._outcome is None:
            return Outcome(error=GivenUp(f"it did not return within {MAX_SECONDS:g} s"))
        return self._outcome

    def cancel(self) -> None:
        """The result is not needed any more: a call that has not begun is never run."""
        self._cancelled = True

    def run(self) -> None:
        if self._cancelled:
            return
        _here.caller = self._caller
        try:
            self._outcome = attempt(self._work)
        except BaseException as error:  # foreign code must not end the thread
            self._outcome = Outcome(error=error)
        finally:
            del _here.caller


class _Lane:
    """Calls in their order. `busy_since` is when the running call began."""

    __slots__ = ("busy_since", "changed", "waiting")

    def __init__(self, changed: threading.Condition) -> None:
        self.changed = changed
        self.waiting: deque[Call[Any]] = deque()
        self.busy_since: float | None = None

    def is_stuck(self) -> bool:
        since = self.busy_since
        return since is not None and time.monotonic() - since > MAX_SECONDS


class CallThreads:
    """Runs calls in threads, lane by lane."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._lanes: dict[Hashable, _Lane] = {}  # lanes with calls
        self._ready: deque[Hashable] = deque()  # lanes with calls that no thread runs
        self._num_threads = self._num_idle = 0

    def submit(self, lane: Hashable, work: Callable[[], Made]) -> Call[Made]:
        """Run `work` after the calls that were submitted to its lane before."""
        with self._changed:
            if lane not in self._lanes:
                self._lanes[lane] = _Lane(self._changed)
                self._ready.append(lane)
            call = Call(self._lanes[lane], work)
            self._lanes[lane].waiting.append(call)
            if len(self._ready) > self._num_idle and self._num_threads < MAX_THREADS:
                self._num_threads += 1
                self._num_idle += 1
                name = f"quire-lane-{self._num_threads}"
                threading.Thread(target=self._work, name=name, daemon=True).start()
            else:
                self._changed.notify_all()
        return call

    def wait(self, calls: Iterable[Call[Any]], seconds: float) -> None:
        """Wait until all of these calls are done, for at most `seconds`."""
        deadline = time.monotonic() + seconds
        with self._changed:
            for call in calls:
                while not call.done() and (remaining := deadline - time.monotonic()) > 0:
                    self._changed.wait(remaining)

    def _work(self) -> None:
        while (taken := self._take()) is not None:
            key, lane, call = taken
            call.run()
            with self._changed:
                lane.busy_since = None
                self._num_idle += 1
                if lane.waiting:
                    self._ready.append(key)
                else:
                    del self._lanes[key]
                self._changed.notify_all()

    def _take(self) -> tuple[Hashable, _Lane, Call[Any]] | None:
        """The next call to run; None if none came for IDLE_SECONDS."""
        with self._changed:
            deadline = time.monotonic() + IDLE_SECONDS
            while not self._ready and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)
            self._num_idle -= 1
            if not self._ready:
                self._num_threads -= 1
                return None
            key = self._ready.popleft()
            lane = self._lanes[key]
            lane.busy_since = time.monotonic()
            return key, lane, lane.waiting.popleft()
