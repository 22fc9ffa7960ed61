"""The one drive loop: windows of requests in, (index, RequestOutput) out as each finishes.

Plans each window (order, duplicates), feeds the engine, and takes the next window while the
last one drains: there is no barrier between them. Whatever happens (the caller leaves, Ctrl-C,
an error of the engine) the engine is left empty: no rows, every block free.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from quire.engine import Engine
from quire.errors import InvalidRequest, QuireError
from quire.outputs import RequestOutput
from quire.plan.lengths import OutputLengths
from quire.plan.planner import Planner
from quire.request import Request
from quire.results import Results
from quire.sampling_params import SamplingParams
from quire.scheduler.beams import search_lead
from quire.scheduler.scoring import continuation_samples
from quire.sequence import Guide, Sequence


@dataclass(frozen=True, slots=True)
class Refused:
    """A prompt that never became a request, and why."""

    number: int
    error: QuireError


class Grammar(Protocol):
    """A compiled grammar: a fresh guide for each sequence that follows it."""

    def matcher(self) -> Guide: ...


class Compiling(Protocol):
    """A grammar that is being compiled; `result` raises InvalidRequest where it is refused."""

    def done(self) -> bool: ...

    def result(self) -> Grammar: ...


Window = list[Request | Refused]
Result = tuple[int, RequestOutput]


@dataclass(slots=True)
class _Pending:
    """A request in the engine, with the requests that are to get the same answer."""

    index: int
    samples: list[Sequence]
    num_left: int
    copies: list[tuple[int, Request]] = field(default_factory=list)


class Run:
    """One call of generate, chat or stream."""

    def __init__(
        self,
        engine: Engine,
        planner: Planner,
        lengths: OutputLengths,
        results: Results,
        *,
        compile_grammar: Callable[[SamplingParams], Compiling | None] = lambda params: None,
        between_steps: Callable[[], None] = lambda: None,
    ) -> None:
        self._engine, self._planner, self._lengths = engine, planner, lengths
        self._results, self._between_steps = results, between_steps
        self._compile_grammar = compile_grammar
        self._compiling: deque[tuple[Compiling, _Pending]] = deque()
        self._pending: dict[int, _Pending] = {}
        self._num_seen = 0

    def outputs(self, windows: Iterable[Window]) -> Iterator[Result]:
        """Each prompt's result when it is there; refused prompts at once.

        An empty window says that more may come; whoever yields it waits by himself where the
        engine has nothing else to do.
        """
        source = iter(windows)
        exhausted = False
        try:
            while True:
                while not exhausted and self._engine.wants_more:
                    window = next(source, None)
                    exhausted = window is None
                    if not window:  # nothing yet: go on with what is there
                        break
                    yield from self._enter(window)
                yield from self._compiled(wait=self._engine.idle)
                if self._engine.idle and exhausted and not self._compiling:
                    return
                if not self._engine.idle:
                    for sequence in self._step():
                        yield from self._ended(sequence)
                self._between_steps()
        finally:
            self._abandon()

    def _enter(self, window: Window) -> Iterator[Result]:
        """Plan a window and queue it; the refused ones are done already."""
        first, self._num_seen = self._num_seen, self._num_seen + len(window)
        indices, requests = [], []
        for index, item in enumerate(window, start=first):
            if isinstance(item, Refused):
                yield index, RequestOutput.failed(str(item.number), item.error)
            else:
                indices.append(index)
                requests.append(item)
        if not requests:
            return
        plan = self._planner.plan(requests)
        for place, i in enumerate(plan.order):
            self._add(indices[i], requests[i], order=first + place)
        for i, original in plan.duplicates.items():
            pending = self._pending[requests[original].number]
            pending.copies.append((indices[i], requests[i]))

    def _add(self, index: int, request: Request, *, order: int) -> None:
        samples = self._samples(request, order)
        pending = _Pending(index, samples, len(samples))
        self._pending[request.number] = pending
        grammar = self._compile_grammar(request.params)
        if grammar is None:
            self._engine.add(samples)
        else:
            self._compiling.append((grammar, pending))

    def _samples(self, request: Request, order: int) -> list[Sequence]:
        if request.continuations:
            return continuation_samples(request, order)
        if request.search is not None:
            return [search_lead(request, request.search, order)]
        return [
            Sequence(request, sample, order, self._results.watch(request))
            for sample in range(request.params.n)
        ]

    def _compiled(self, *, wait: bool) -> Iterator[Result]:
        """Queue the requests whose grammar is ready; those whose grammar is refused are done.

        `wait`: the engine has nothing else to do, so wait for the oldest.
        """
        for _ in range(len(self._compiling)):
            grammar, pending = self._compiling.popleft()
            if not grammar.done() and not wait:
                self._compiling.append((grammar, pending))
                continue
            wait = False
            try:
                for sequence in pending.samples:
                    sequence.guide = grammar.result().matcher()
            except InvalidRequest as error:
                for sequence in pending.samples:
                    sequence.finish_reason, sequence.error = "error", error.at(pending.index)
                yield from self._done(pending)
            else:
                self._engine.add(pending.samples)

    def _step(self) -> list[Sequence]:
        try:
            return self._engine.step()
        except BaseException:
            # Rows and blocks may be half changed: begin again from nothing.
            self._engine.reset()
            self._pending.clear()
            raise

    def _ended(self, sequence: Sequence) -> Iterator[Result]:
        pending = self._pending[sequence.request.number]
        self._lengths.observe(
            sequence.request, len(sequence.output_ids), stopped=sequence.finish_reason == "stop"
        )
        pending.num_left -= 1
        if sequence.group is not None and sequence.group.answers:
            pending.samples = sequence.group.answers
        if not pending.num_left:
            yield from self._done(pending)

    def _done(self, pending: _Pending) -> Iterator[Result]:
        own = pending.samples[0].request
        del self._pending[own.number]
        for index, request in [(pending.index, own), *pending.copies]:
            yield index, self._results.output(request, pending.samples)

    def _abandon(self) -> None:
        """Leave nothing of this run in the engine."""
        for pending in self._pending.values():
            self._engine.abort(pending.samples)
        self._pending.clear()
        self._compiling.clear()
        self._engine.drain()
