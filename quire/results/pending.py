"""Requests in the engine, or on their way there, and the requests that get their answers."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

from quire.errors import QuireError
from quire.outputs import RequestOutput
from quire.request import Request
from quire.results.finished import Results
from quire.results.text_watch import Shown
from quire.scheduler.beams import search_lead
from quire.scheduler.scoring import score_lead
from quire.scheduler.sequence import Guide, Sequence

MOMENT = 0.01  # seconds


class Grammar(Protocol):
    """A compiled grammar: a fresh guide for each sequence that follows it."""

    def matcher(self) -> Guide: ...


class Compiling(Protocol):
    """A grammar that is being compiled; `result` raises InvalidRequest where it is refused."""

    def done(self) -> bool: ...

    def result(self) -> Grammar: ...


class Preparing(Protocol):
    """Media that are being prepared; `result` raises InvalidRequest where one cannot be read."""

    def done(self) -> bool: ...

    def hurry(self) -> None:
        """Nothing else is left to wait for: stop waiting to prepare more media together."""

    def result(self) -> object: ...


@dataclass(slots=True, eq=False)
class Pending:
    """A request in the engine, and the requests that get its answer: itself and equal ones."""

    samples: list[Sequence]
    num_left: int
    receivers: list[Receiver]
    grammar: Compiling | None = None  # being compiled: the request is not in the engine yet
    media: Preparing | None = None  # being prepared: likewise

    @property
    def is_waiting(self) -> bool:
        return self.grammar is not None or self.media is not None

    @property
    def is_ready(self) -> bool:
        return all(one is None or one.done() for one in (self.grammar, self.media))

    def is_ready_soon(self) -> bool:
        """Wait a moment; whether grammar and media are ready then."""
        if self.media is not None:
            self.media.hurry()
        until = time.monotonic() + MOMENT
        while not (ready := self.is_ready) and time.monotonic() < until:
            time.sleep(MOMENT / 10)
        return ready

    def finish_waiting(self) -> None:
        """Wait for grammar and media and take them; raises InvalidRequest if one is refused."""
        grammar, media = self.grammar, self.media
        self.grammar = self.media = None
        if media is not None:
            media.result()
        if grammar is not None:
            for sequence in self.samples:
                sequence.guide = grammar.result().matcher()

    @property
    def number(self) -> int:
        """The number of the request that is computed, even if it gave up waiting for the answer."""
        return self.samples[0].request.number


@dataclass(slots=True)
class Receiver:
    """A request, its place among the prompts, and how much of its answer was shown."""

    index: int
    request: Request
    shown: Shown


def failed(request: Request, error: QuireError) -> RequestOutput:
    """The output of a request that ends with an error of its own."""
    return RequestOutput.failed(
        str(request.number),
        error,
        prompt=request.prompt,
        prompt_token_ids=request.plain_ids.tolist(),
    )


def new_samples(request: Request, order: int, results: Results) -> list[Sequence]:
    """The sequences of a request, or the one that leads them; `order`: its place in the plan."""
    if request.continuations:
        return [score_lead(request, order)]
    if request.search is not None:
        return [search_lead(request, request.search, order)]
    return [
        Sequence(request, i, order, results.watch(request), thoughts=results.thoughts(request))
        for i in range(request.params.n)
    ]
