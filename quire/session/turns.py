"""One call at a time per LLM: a second thread waits, a call from inside a call is refused."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from quire.errors import EngineAsleep, EngineBusy, EngineClosed, Interrupted
from quire.sampling.call_threads import on_behalf_of
from quire.session.collector import rare_full_collections

if TYPE_CHECKING:
    from quire.session.stepping import Stepping


class Turns:
    """Lets one call in at a time. Only the process that made it may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner: int | None = None
        self._process = os.getpid()
        self.closed = False
        self.stepping: Stepping | None = None  # requests that stay in the engine between calls
        self.asleep: frozenset[str] = frozenset()  # what sleep() took and wake_up() brings back

    @contextmanager
    def turn(self, *, needs_all: bool = True, stepping: bool = False) -> Iterator[None]:
        """Hold the turn, after waiting for it; raises where the wait would never end. `needs_all`:
        the call needs all parts awake. `stepping`: requests may stay in the engine after it; all
        other calls need the engine empty. Ctrl-C always becomes Interrupted here, because programs
        read its outputs."""
        self.check()
        if self._owner is not None and self._owner in (threading.get_ident(), on_behalf_of()):
            raise EngineBusy(
                "this LLM is already at work: it was called from a callback or a processor, or "
                "while one of its streams is open. Finish or close() the stream first, or "
                "collect what you need and call afterwards."
            )
        with self._lock:
            self.check()
            if needs_all and self.asleep:
                raise EngineAsleep(
                    f"this LLM sleeps ({', '.join(sorted(self.asleep))}): call wake_up() first"
                )
            if self.stepping is not None and not stepping:
                raise EngineBusy(
                    "requests of add_request are not finished: call step() until "
                    "has_unfinished_requests() is False, or abort_request() with their ids, first"
                )
            self._owner = threading.get_ident()
            try:
                with rare_full_collections():
                    yield
            except KeyboardInterrupt as pressed:
                if isinstance(pressed, Interrupted):
                    raise
                raise Interrupted("stopped by Ctrl-C") from None
            finally:
                self._owner = None

    def check(self) -> None:
        """Raise if the engine was closed, or made before a fork."""
        if self.closed:
            raise EngineClosed("this LLM was closed; make a new one to go on")
        if os.getpid() != self._process:
            raise EngineBusy(
                "this LLM was made before the process forked, and its threads and memory did not "
                "come along. Make the LLM in the child, or start the child with "
                'multiprocessing.get_context("spawn").'
            )
