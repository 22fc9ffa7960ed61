"""The engine on a thread of its own: requests come in at any time, outputs go out after steps.

Requests are read between two steps of the one drive loop (run.py). The outputs of a step, for all
requests, are handed over in one call. The thread does not know who reads them.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from quire.base.boundary import for_row
from quire.errors import EngineClosed, EngineError, QuireError
from quire.outputs import CompletionOutput, RequestOutput
from quire.params.pooling import PoolingParams
from quire.request import Request
from quire.results.output_pacing import OutputPacing
from quire.run import Refused, Run, Window
from quire.sampling_params import BeamSearchParams, SamplingParams
from quire.session.priorities import priorities_of
from quire.session.session import Session

CLOSE_SECONDS = 30.0  # how long closing waits for the step in progress
READ_IN_A_HURRY = 8  # background requests read between two steps: each takes some tenths of a ms
READ_TOGETHER = 64  # at other times, so that new requests do not have to wait for all of them
LOOK_SECONDS = 0.5  # between two looks for requests whose readers are gone
READING = "its prompt was read"


@dataclass(eq=False, slots=True)
class Submission:
    """A request on its way through the thread. `reader` belongs to the caller; the fields below it
    are written by the thread only, except `given_up`.

    `background`: it yields to all other requests. `tenant`: whose turns it takes. `chat`: its
    answer is split into parts as that of a chat, tool calls included if it has `tools`. `search`:
    its answers come from a beam search. `own_params`: the parameters are checked already, and not
    used elsewhere."""

    prompt: Any
    params: SamplingParams | PoolingParams
    priority: int = 0
    tokenization_kwargs: dict[str, Any] | None = None
    background: bool = False
    tenant: str = ""
    chat: bool = False
    tools: Sequence[Any] | None = None
    search: BeamSearchParams | None = None
    own_params: bool = False
    lora_request: Any = None
    request_id: str = ""
    reader: Any = None
    number: int = -1  # of the request in the engine, once it is there
    given_up: bool = False


News = tuple[Submission, RequestOutput | BaseException]
_Read = Request | RequestOutput | BaseException


class _Inbox:
    """New and cancelled requests, kept until the thread takes them."""

    def __init__(self) -> None:
        self.closed = False
        self._new: deque[Submission] = deque()
        self._background: deque[Submission] = deque()
        self._given_up: deque[Submission] = deque()
        self._changed = threading.Condition()

    def ask(self, asked: Sequence[Submission]) -> None:
        with self._changed:
            if self.closed:
                raise EngineClosed("the engine was shut down; make a new one to go on")
            for one in asked:
                (self._background if one.background else self._new).append(one)
            self._changed.notify_all()

    @property
    def is_urgent(self) -> bool:
        """Whether a foreground request came."""
        return bool(self._new)

    def give_up(self, asked: Submission) -> None:
        with self._changed:
            asked.given_up = True
            self._given_up.append(asked)
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self.closed = True
            self._changed.notify_all()

    def take_new(self, *, wait: bool, background: int = sys.maxsize) -> list[Submission]:
        """All new foreground requests, and at most `background` others; with `wait`, wait until
        there are some, or the inbox is closed."""
        with self._changed:
            self._changed.wait_for(lambda: not wait or self._new or self._background or self.closed)
            new = list(self._new)
            self._new.clear()
            num_taken = min(len(self._background), background)
            new += [self._background.popleft() for _ in range(num_taken)]
            self._changed.notify_all()
            return new

    def wait_for_room(self, most: Callable[[], int]) -> int:
        """How many more background requests are wanted, at least one. Waits until a quarter of
        `most` is missing, so that the next ones come together, or the inbox is closed."""

        def missing() -> int:
            return most() - len(self._background)

        with self._changed:
            self._changed.wait_for(lambda: missing() >= max(most() // 4, 1) or self.closed)
            return max(missing(), 1)

    def take_given_up(self) -> list[Submission]:
        with self._changed:
            given_up = list(self._given_up)
            self._given_up.clear()
            return given_up


class EngineThread:
    """Drives a session, which has no other user, until it is closed."""

    def __init__(
        self,
        session: Session,
        hand_over: Callable[[list[News]], Iterable[Submission] | None],
        *,
        on_idle: Callable[[], None] = lambda: None,
        is_behind: Callable[[], bool] = lambda: False,
        is_left: Callable[[Submission], bool] | None = None,
        hurried: bool = False,
    ) -> None:
        """`hand_over` is called on the thread with the news of a step: outputs of requests, or the
        error that ended them. It may return requests that are not read any more. `on_idle` is
        called before the thread waits for requests. While `is_behind` returns True, no outputs of
        growing answers are made. `is_left`: whether nobody reads a request any more, which is asked
        now and then for those that hand over nothing before their end.
        `hurried`: answers to foreground requests are waited for."""
        self._on_idle, self._hurried = on_idle, hurried
        self._is_left, self._looked = is_left, time.monotonic()
        self.failure: BaseException | None = None  # the error that ended the engine, if any
        self._session, self._hand_over = session, hand_over
        self._inbox = _Inbox()
        self._num_read = 0  # background requests since the last step
        self._capacity = session.engine.scheduler.rows.capacity
        self._running: dict[int, Submission] = {}  # by index in the run
        self.in_engine: dict[int, Submission] = {}  # the same by request number
        self._news: list[News] = []
        session.engine.scheduler.lanes.is_serving = hurried
        self._run: Run = session.new_run(self._between_steps, OutputPacing(is_behind=is_behind))
        self.thread = threading.Thread(target=self._drive, name="quire-engine", daemon=True)
        self.thread.start()

    @property
    def is_running(self) -> bool:
        return self.thread.is_alive() and not self._inbox.closed

    def ask(self, *asked: Submission) -> None:
        if self.failure is not None:
            raise EngineError(f"the engine ended before: {self.failure}") from self.failure
        self._inbox.ask(asked)

    def wait_for_room(self) -> int:
        """Wait until more background requests are wanted; returns how many. Requests that are
        prepared earlier hold memory, such as images, and slow the steps of the foreground."""
        return self._inbox.wait_for_room(
            lambda: 4 * READ_IN_A_HURRY if self._is_hurried else self._capacity
        )

    @property
    def _is_hurried(self) -> bool:
        return self._hurried and self._inbox.is_urgent or self._session.engine.is_hurried

    def give_up(self, asked: Submission) -> None:
        """Cancel a request, wherever it is; its last output has finish_reason "abort"."""
        self._inbox.give_up(asked)

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """End all requests after the step in progress, or `seconds`, and free the memory."""
        self._inbox.close()
        self.thread.join(seconds)
        self._session.close()

    def _drive(self) -> None:
        ended: BaseException = EngineClosed("the engine was shut down")
        try:
            windows = self._windows()
            for place, output in self._run.outputs(windows, urgent=lambda: self._inbox.is_urgent):
                asked = self._running[place]
                if output.finished:
                    del self._running[place], self.in_engine[asked.number]
                output.request_id = asked.request_id
                self._news.append((asked, output))
        except EngineClosed:
            pass
        except BaseException as failure:  # every request gets it: nothing waits for this thread
            self.failure = ended = failure
        self._inbox.close()
        left = [*self._running.values(), *self._inbox.take_new(wait=False)]
        self._news += [(asked, ended) for asked in left]
        self._running.clear()
        self._send()

    def _windows(self) -> Iterator[Window]:
        """Requests that came since the last step; an empty window where there are none."""
        place = 0
        while not self._inbox.closed:
            self._send()
            window: Window = []
            engine = self._session.engine
            wait = not self._running and engine.idle
            if wait:
                self._on_idle()
            new = self._inbox.take_new(wait=wait, background=self._num_to_read())
            self._num_read += sum(asked.background for asked in new)
            for asked, item in self._read(new):
                if not isinstance(item, Request):
                    self._news.append((asked, item))
                    continue
                asked.number = item.number
                if self._hurried and not asked.background:
                    engine.scheduler.lanes.attend()
                self._running[place] = self.in_engine[item.number] = asked
                place += 1
                window.append(item)
            yield window

    def _num_to_read(self) -> int:
        """How many background requests to read before foreground ones are looked for again; none if
        a step should come first, because foreground answers wait for it."""
        if not self._run.wants_more:
            return 0
        most = min(self._capacity, READ_IN_A_HURRY) if self._is_hurried else self._capacity
        return max(min(most - self._num_read, READ_TOGETHER), 0)

    def _read(self, new: list[Submission]) -> Iterator[tuple[Submission, _Read]]:
        """The request of each prompt, or what its reader gets instead. Background prompts are read
        together, which takes the thread less time than one by one."""
        for kind, some in groupby(new, key=_kind):
            alike = list(some)
            items = None if kind is None else for_row(READING, read_asked, self._session, alike)
            if items is None or isinstance(items, QuireError):  # find the bad one; keep the others
                yield from ((asked, self._read_alone(asked)) for asked in alike)
            else:
                yield from zip(alike, map(_without_number, items), strict=True)

    def _read_alone(self, asked: Submission) -> _Read:
        if asked.given_up:
            answer = CompletionOutput(0, "", [], None, None, finish_reason="abort")
            return RequestOutput(asked.request_id, None, None, None, [answer], True)
        items = for_row(READING, read_asked, self._session, [asked])
        return items if isinstance(items, QuireError) else _without_number(items[0])

    def _between_steps(self) -> None:
        if self._inbox.closed:
            raise EngineClosed("the engine was shut down")
        self._num_read = 0
        if self._is_left is not None and time.monotonic() - self._looked > LOOK_SECONDS:
            self._looked = time.monotonic()
            for asked in filter(self._is_left, self.in_engine.values()):
                self.give_up(asked)
        for asked in self._inbox.take_given_up():
            if asked.number >= 0:
                self._run.cancel(asked.number)
        self._send()

    def _send(self) -> None:
        news, self._news = self._news, []
        for asked in (self._hand_over(news) if news else None) or ():
            self.give_up(asked)


def _kind(asked: Submission) -> tuple[Any, ...] | None:
    """Requests of one kind can be read together; None: it must be read alone."""
    is_plain = asked.tokenization_kwargs is None and asked.search is None and not asked.given_up
    if not (asked.background and is_plain and isinstance(asked.params, SamplingParams)):
        return None
    return asked.chat, asked.tools, asked.own_params, asked.tenant


def _without_number(item: Request | Refused) -> Request | QuireError:
    return item.error if isinstance(item, Refused) else item


def read_asked(session: Session, some: Sequence[Submission]) -> Window:
    """The requests of these submissions, which are one, or several of one kind."""
    first = some[0]
    if isinstance(first.params, PoolingParams):
        return [_read_pooling(session, first, first.params)]
    lora = first.lora_request if len(some) == 1 else [asked.lora_request for asked in some]
    read = session.intake.read_watched(
        [asked.prompt for asked in some],
        [asked.params for asked in some if isinstance(asked.params, SamplingParams)],
        own_params=first.own_params,
        priority=[asked.priority for asked in some],
        tokenization_kwargs=first.tokenization_kwargs,
        background=first.background,
        tenant=first.tenant,
        chat=first.chat,
        tools=first.tools,
        adapters=session.asked_adapters(lora),
    )
    if first.search is None:
        return read
    return [r if isinstance(r, Refused) else replace(r, search=first.search) for r in read]


def _read_pooling(session: Session, asked: Submission, params: PoolingParams) -> Request | Refused:
    [priority] = priorities_of([asked.priority], 0, 1)
    made = session.read_pooling(
        *(asked.prompt, params, asked.tokenization_kwargs, priority),
        lora_request=asked.lora_request,
    )
    if isinstance(made, Refused):
        return made
    return replace(made, background=asked.background, tenant=asked.tenant)
