"""The engine on a thread of its own: requests come in at any time, their outputs go out in steps.

Requests are read between two steps of the one drive loop (run.py); what a step made for all of them
is handed over in one call. Knows nothing of who reads the outputs.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from quire.base.boundary import for_row
from quire.errors import EngineClosed, EngineError, QuireError
from quire.outputs import CompletionOutput, RequestOutput
from quire.params.pooling import PoolingParams
from quire.request import Request
from quire.results.telling import Telling
from quire.run import Refused, Run, Window
from quire.sampling_params import BeamSearchParams, SamplingParams
from quire.session.priorities import priorities_of
from quire.session.session import Session

CLOSE_SECONDS = 30.0  # how long closing waits for the step in progress
READ_IN_A_HURRY = 8  # requests of the background between two steps: each takes some tenths of a ms
READ_TOGETHER = 64  # at other times: what comes meanwhile waits for these, and not for all
READING = "its prompt was read"


@dataclass(eq=False, slots=True)
class Submission:
    """A request on its way through the thread. `reader` is the caller's; what stands below it is
    written by the thread alone, except `given_up`.

    `background`: it yields to whatever else there is. `tenant`: whose turn it takes. `chat`: its
    answer is taken apart as that of a chat, for tool calls too if it has `tools`. `search`: its
    answers are those of a beam search. `own_params`: the parameters are checked, and not used
    elsewhere."""

    prompt: Any
    params: SamplingParams | PoolingParams
    priority: int = 0
    tokenization_kwargs: dict[str, Any] | None = None
    background: bool = False
    tenant: str = ""
    chat: bool = False
    tools: bool = False
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
    """What callers ask for, until the thread reads it."""

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
        """Whether anything came that does not yield."""
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
        """The new ones, and of those in the background at most so many; `wait` until there are
        some, or the inbox is closed."""
        with self._changed:
            self._changed.wait_for(lambda: not wait or self._new or self._background or self.closed)
            new = list(self._new)
            self._new.clear()
            num_taken = min(len(self._background), background)
            new += [self._background.popleft() for _ in range(num_taken)]
            self._changed.notify_all()
            return new

    def wait_for_room(self, most: Callable[[], int]) -> int:
        """Until a quarter of so many in the background is missing, so that what comes next comes
        together, or the inbox is closed; how many are missing, at least one."""

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
    """Drives a session until it is closed; it then has no other user."""

    def __init__(
        self,
        session: Session,
        hand_over: Callable[[list[News]], None],
        *,
        on_idle: Callable[[], None] = lambda: None,
        is_behind: Callable[[], bool] = lambda: False,
        hurried: bool = False,
    ) -> None:
        """`hand_over` is called on the thread with what a step made: an output for each request
        that has one, or the error that ended it; `on_idle` before it waits for requests.
        While what was handed over `is_behind`, there is nothing new of answers that grow.
        `hurried`: requests that are not in the background are waited for."""
        self._on_idle, self._hurried = on_idle, hurried
        self.failure: BaseException | None = None  # what ended the engine, if it was not closed
        self._session, self._hand_over = session, hand_over
        self._inbox = _Inbox()
        self._num_read = 0  # of the background, since the last step
        self._capacity = session.engine.scheduler.rows.capacity
        self._running: dict[int, Submission] = {}  # by place in the run
        self.in_engine: dict[int, Submission] = {}  # the same by their numbers there
        self._news: list[News] = []
        session.engine.scheduler.lanes.is_serving = hurried
        self._run: Run = session.new_run(self._between_steps, telling=Telling(is_behind=is_behind))
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
        """Until more of the background is wanted, and how many: what is made ready before holds
        memory, as images do, and takes time from the steps of those whose answers are read."""
        return self._inbox.wait_for_room(
            lambda: 4 * READ_IN_A_HURRY if self._is_hurried else self._capacity
        )

    @property
    def _is_hurried(self) -> bool:
        return self._hurried and self._inbox.is_urgent or self._session.engine.is_hurried

    def give_up(self, asked: Submission) -> None:
        """Cancel it, wherever it is; its last output has finish_reason "abort"."""
        self._inbox.give_up(asked)

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """End what runs, after the step in progress or so many seconds, and free the memory."""
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
        except BaseException as failure:  # handed to every request: no caller waits for this thread
            self.failure = ended = failure
        self._inbox.close()
        left = [*self._running.values(), *self._inbox.take_new(wait=False)]
        self._news += [(asked, ended) for asked in left]
        self._running.clear()
        self._send()

    def _windows(self) -> Iterator[Window]:
        """What came since the last step; an empty window where the engine is to go on."""
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
        """Of the background in one go, before others are looked for again; none where a step comes
        first, which those wait for whose answers are read."""
        if not self._run.wants_more:
            return 0
        most = min(self._capacity, READ_IN_A_HURRY) if self._is_hurried else self._capacity
        return max(min(most - self._num_read, READ_TOGETHER), 0)

    def _read(self, new: list[Submission]) -> Iterator[tuple[Submission, _Read]]:
        """The request of each prompt, or what its reader gets instead. Those of the background are
        read together: that takes less of the thread than one by one."""
        for kind, some in groupby(new, key=_kind):
            alike = list(some)
            items = None if kind is None else for_row(READING, read_asked, self._session, alike)
            if items is None or isinstance(items, QuireError):  # one of them; the others are good
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
        for asked in self._inbox.take_given_up():
            if asked.number >= 0:
                self._run.cancel(asked.number)
        self._send()

    def _send(self) -> None:
        news, self._news = self._news, []
        if news:
            self._hand_over(news)


def _kind(asked: Submission) -> tuple[bool | str, ...] | None:
    """Those of one kind can be read together; None: it is read alone."""
    is_plain = asked.tokenization_kwargs is None and asked.search is None and not asked.given_up
    if not (asked.background and is_plain and isinstance(asked.params, SamplingParams)):
        return None
    return asked.chat, asked.tools, asked.own_params, asked.tenant


def _without_number(item: Request | Refused) -> Request | QuireError:
    return item.error if isinstance(item, Refused) else item


def read_asked(session: Session, some: Sequence[Submission]) -> Window:
    """The requests that are asked for, or why there is none: one, or several of a kind."""
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
        with_tools=first.tools,
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
