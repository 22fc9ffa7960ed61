"""What the engines of all kinds of jobs share: windows of rows in, a result for each row out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from quire.errors import NotSupported, QuireError
from quire.jobs.child.requests import failed, result_or_error
from quire.replicas.board import Board
from quire.replicas.child.driving import Driver, NumberedRequests, timings_of
from quire.replicas.child.feed import Feed, Rows
from quire.replicas.child.tally import session_facts
from quire.replicas.streams import Send
from quire.replicas.wire import Message

if TYPE_CHECKING:
    from quire.outputs import RequestOutput
    from quire.request import Request
    from quire.run import Refused
    from quire.session.session import Session

Given = TypeVar("Given")
Made = TypeVar("Made")


class JobEngine(ABC):
    """Answers rows with a session. A kind of job says what it asks for each row (`_requests`) and
    what it makes of the output (`_answer`)."""

    chat = False  # whether prompts go through the model's chat template

    def __init__(self, session: Session, board: Board, files: Message) -> None:
        self._session, self._files = session, files
        self._driver = Driver(session, board)

    def facts(self) -> Message:
        return {**session_facts(self._session), "chat": self.chat, **self._files}

    def run(self, feed: Feed, send: Send) -> None:
        self._driver.run(feed, send, lambda rows: self._windows(rows, send), self._result)

    def plan(self, rows: Rows) -> str:
        raise NotSupported("--plan is for jobs that generate text; run it with --limit instead.")

    @abstractmethod
    def _requests(self, rows: Rows) -> Sequence[Request | Refused | QuireError]:
        """What to ask for each row, or what is wrong with it."""

    @abstractmethod
    def _answer(self, row: int, output: RequestOutput) -> Message | None:
        """The row's result; None where the row goes on with another request."""

    def _windows(self, rows: Rows, send: Send) -> Iterator[NumberedRequests]:
        yield self._window(rows, send)

    def _window(self, rows: Rows, send: Send) -> NumberedRequests:
        """These rows as requests; those that cannot be asked are answered at once."""
        asked: NumberedRequests = []
        for row, made in zip(rows, self._requests(rows), strict=True):
            if isinstance(made, QuireError):
                send(self._failed(row["row"], made))
            else:
                asked.append((row["row"], made))
        return asked

    def _result(self, row: int, output: RequestOutput) -> Message | None:
        if output.error is not None:
            return self._failed(row, output.error)
        return self._answer(row, output)

    def _failed(self, row: int, error: QuireError) -> Message:
        return failed(row, error)


def answered(
    row: int,
    output: RequestOutput,
    outputs: Sequence[str],
    *,
    finish_reasons: Sequence[str | None] = ("stop",),
    output_tokens: int = 0,
    **extra: Any,
) -> Message:
    """The result of an answered row; `extra` are fields that only some kinds of jobs have."""
    return {
        "kind": "result",
        "row": row,
        "outputs": list(outputs),
        "finish_reasons": list(finish_reasons),
        "prompt_tokens": output.num_prompt_tokens,
        "output_tokens": output_tokens,
        "timings": timings_of(output),
        **extra,
    }


def skipping_errors(
    found: Sequence[Given | QuireError],
    make: Callable[[list[Given]], Sequence[Made | QuireError]],
) -> list[Made | QuireError]:
    """Calls `make` with all elements that are no errors; the errors keep their places."""
    made = iter(make([each for each in found if not isinstance(each, QuireError)]))
    return [each if isinstance(each, QuireError) else next(made) for each in found]


def all_or_one_by_one(
    given: Sequence[Given], make: Callable[[Sequence[Given]], Sequence[Made]]
) -> Sequence[Made | QuireError]:
    """Makes all at once; where that fails, makes one after the other to find the faulty one."""
    found = result_or_error(lambda: make(given))
    if not isinstance(found, QuireError):
        return found
    return [found] if len(given) == 1 else [all_or_one_by_one([one], make)[0] for one in given]
