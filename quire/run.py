"""The one drive loop: windows of requests go in, (index, RequestOutput) comes out as each finishes,
and for watched requests also as they grow.

Plans each window (order, duplicates), feeds the engine, and takes the next window while the
last one drains: there is no barrier between them. However a run ends (the caller leaves, Ctrl-C,
an error of the engine) the engine is left empty: no rows, every block free.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass
from itertools import chain, islice

from quire.base.boundary import for_row
from quire.engine import Engine
from quire.errors import InvalidRequest, QuireError
from quire.outputs import RequestOutput
from quire.plan.lengths import OutputLengths
from quire.plan.planner import Planner
from quire.request import Request
from quire.results.delayed_outputs import DelayedOutputs
from quire.results.finished import Results
from quire.results.output_pacing import OutputPacing
from quire.results.pending import Compiling, Pending, Preparing, Receiver, failed, new_samples
from quire.sampling_params import SamplingParams
from quire.scheduler.reports import Grown, StepReport
from quire.scheduler.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Refused:
    """A prompt that never became a request, and why."""

    number: int
    error: QuireError


WRITING = "its answer was written out"
QUEUED_FIRST = 256  # requests queued before a first plan is made, and whenever it needs more
LOOKED_AT = 256  # requests whose grammars or media are awaited, looked at in a step
Window = list[Request | Refused]
Result = tuple[int, RequestOutput]


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
        prepare_media: Callable[[Request], Preparing | None] = lambda request: None,
        between_steps: Callable[[], None] = lambda: None,
        on_finished: Callable[[RequestOutput], None] = lambda output: None,
        pacing: OutputPacing | None = None,
    ) -> None:
        """`on_finished` gets the whole last output of every request. `pacing` decides after which
        steps outputs of growing answers are made: None, after each step."""
        self._engine, self._planner, self._lengths = engine, planner, lengths
        self._results, self._between_steps = results, between_steps
        self._compile_grammar, self._prepare_media = compile_grammar, prepare_media
        self._on_finished, self._pacing = on_finished, pacing or OutputPacing(paced=False)
        self._not_ready: deque[Pending] = deque()
        self._pending: dict[int, Pending] = {}  # by the number of each request in it
        self._cancelled, self._num_seen, self._delayed = list[Result](), 0, DelayedOutputs()

    def outputs(
        self,
        windows: Iterable[Window],
        *,
        urgent: Callable[[], bool] = lambda: False,
        parted: bool = False,
    ) -> Generator[Result, None, None]:
        """Yield each prompt's result as it finishes; refused prompts at once. Watched requests also
        give outputs that are not `finished`, with all they have so far. Windows are read while
        fewer requests wait than could run, and whenever the next one is `urgent`.

        An empty window says that more may come. The source of windows may block where the engine
        has nothing else to do. `parted`: where the device waits, a first plan is submitted before
        all requests of a window are queued; none may be cancelled meanwhile.
        """
        source, exhausted = iter(windows), False
        try:
            while True:
                while not exhausted and (self.wants_more or urgent()):
                    window = next(source, None)
                    exhausted = window is None
                    if not window:  # nothing yet: go on with the requests that are here
                        break
                    yield from self._enter(window, parted=parted and self.is_empty)
                if exhausted and self.is_empty:
                    return
                yield from self._advance()
        finally:
            self._abandon()

    @property
    def wants_more(self) -> bool:
        """Whether fewer requests wait than could run at once, both in the engine and for their
        grammars and media: requests that were read and wait keep their media in memory."""
        return (
            self._engine.wants_more and len(self._not_ready) < self._engine.scheduler.rows.capacity
        )

    def step(self, window: Window) -> list[Result]:
        """Take these requests in and compute one step: for callers with a loop of their own."""
        return [*self._enter(window), *self._advance()]

    @property
    def is_empty(self) -> bool:
        return self._engine.idle and not (self._not_ready or self._cancelled or self._delayed)

    def _advance(self) -> Iterator[Result]:
        engine = self._engine
        yield from self._made_ready(wait=engine.idle)
        report = StepReport() if engine.idle else self._step()
        if due := self._pacing.due(report):
            yield from self._pacing.timed(self._grown(due))
        may_wait = engine.takes_plan and not engine.idle
        for sequence in self._delayed.due(report.ended, may_wait, is_hurried=engine.is_hurried):
            yield from self._ended(sequence)
        self._between_steps()
        cancelled, self._cancelled = self._cancelled, []
        yield from cancelled

    def cancel(self, number: int) -> None:
        """Give a request up, wherever it is: its output comes next, with the tokens it has and
        finish_reason "abort". Does nothing if the request ended already, or is not known.

        Call it on the thread that drives the run: between steps, or after taking an output.
        """
        pending = self._pending.get(number)
        if pending is None or not any(r.request.number == number for r in pending.receivers):
            return
        if len(pending.receivers) > 1:  # others wait for the same answer
            self._cancelled += self._take_out(pending, number)
            return
        if pending.is_waiting:
            self._not_ready.remove(pending)
        self._engine.abort(pending.samples)
        lead = pending.samples[0]
        if lead.tree is None and lead.request.hidden is None:
            self._cancelled += self._done(pending)
        else:  # a part of a request's scores or hidden states means nothing
            self._cancelled += self._take_out(pending, number)
            del self._pending[pending.number]

    def _take_out(self, pending: Pending, number: int) -> Iterator[Result]:
        """Give up one of several equal requests, which will not get the answer."""
        for one in [r for r in pending.receivers if r.request.number == number]:
            pending.receivers.remove(one)
            yield one.index, self._finished(self._results.cancelled(one.request))
        if number != pending.number:
            del self._pending[number]

    def _enter(self, window: Window, *, parted: bool = False) -> Iterator[Result]:
        """Plan a window and queue its requests; refused ones get their outputs at once."""
        seen, self._num_seen = self._num_seen, self._num_seen + len(window)
        indices, requests = [], []
        for index, item in enumerate(window, start=seen):
            if isinstance(item, Refused):
                yield index, self._finished(RequestOutput.failed(str(item.number), item.error))
            else:
                indices.append(index)
                requests.append(item)
        if not requests:
            return
        plan = self._planner.order(requests)
        coming = (
            self._add(indices[i], requests[i], order=seen + place)
            for place, i in enumerate(plan.order.tolist())
        )
        # To find requests with few adapters, the scheduler looks at all of them.
        if parted and not any(request.adapter for request in requests):
            yield from self._begin_with(coming)
        yield from chain.from_iterable(coming)
        for i, original in plan.duplicates.items():
            pending = self._pending.get(requests[original].number)
            if pending is None:  # it failed already: this one will fail with an error of its own
                yield from self._add(indices[i], requests[i], order=seen + i)
                continue
            receiver = Receiver(indices[i], requests[i], self._results.shown(requests[i]))
            pending.receivers.append(receiver)
            self._pending[requests[i].number] = pending

    def _begin_with(self, coming: Iterator[Iterator[Result]]) -> Iterator[Result]:
        """Take a step when a few requests are queued; the plan asks for more where it has room."""

        def more() -> None:
            self._cancelled += chain.from_iterable(islice(coming, QUEUED_FIRST))

        more()
        self._engine.scheduler.waiting.more = more
        try:
            yield from self._advance()
        finally:
            self._engine.scheduler.waiting.more = None

    def _add(self, index: int, request: Request, *, order: int) -> Iterator[Result]:
        """Queue a request; one that cannot begin gets its output at once."""
        pending = for_row("it was begun", self._new, index, request, order)
        if isinstance(pending, QuireError):
            yield index, self._finished(failed(request, pending))
            return
        self._pending[request.number] = pending
        if pending.is_waiting:
            self._not_ready.append(pending)
        else:
            self._engine.add(pending.samples)

    def _new(self, index: int, request: Request, order: int) -> Pending:
        samples = new_samples(request, order, self._results)
        tree = samples[0].tree
        return Pending(
            samples,
            len(samples) if tree is None else len(tree.paths),
            [Receiver(index, request, self._results.shown(request))],
            self._compile_grammar(request.params) if tree is None else None,
            self._prepare_media(request) if request.items else None,
        )

    def _made_ready(self, *, wait: bool) -> Iterator[Result]:
        """Queue the requests whose grammar and media are ready; if one was refused, its request
        gets its output.

        `wait`: if none is ready, wait a moment for the oldest: the engine has nothing else to do.
        """
        # They are made in this order, so few requests further back are ready.
        looked_at = list(islice(self._not_ready, LOOKED_AT))
        ready = [pending for pending in looked_at if pending.is_ready]
        if wait and not ready and looked_at:
            ready = looked_at[: int(looked_at[0].is_ready_soon())]
        for pending in ready:
            if self._pending.get(pending.number) is not pending:  # cancelled meanwhile
                continue
            self._not_ready.remove(pending)
            error = for_row("it was made ready", pending.finish_waiting)
            if error is None:
                self._engine.add(pending.samples)
                continue
            if isinstance(error, InvalidRequest):
                error = error.at(pending.receivers[0].index)
            for sequence in pending.samples:
                sequence.finish_reason, sequence.error = "error", error
            yield from self._done(pending)

    def _step(self) -> StepReport:
        try:
            return self._engine.step()
        except BaseException:
            # Rows and blocks may be half changed: empty the engine.
            self._engine.reset()
            self._pending.clear()
            raise

    def _ended(self, sequence: Sequence) -> Iterator[Result]:
        pending = self._pending.get(sequence.request.number)
        if pending is None:  # cancelled when an output was taken, or another path failed before
            return
        if sequence.tree is not None:
            yield from self._scored(sequence, pending)
            return
        self._lengths.observe(
            sequence.request, len(sequence.output_ids), stopped=sequence.finish_reason == "stop"
        )
        pending.num_left -= 1
        if sequence.group is not None and sequence.group.answers:
            pending.samples = sequence.group.answers
        if not pending.num_left:
            yield from self._done(pending)
        elif sequence.request.watched:
            yield from self._grown([Grown(sequence, sequence.output_ids)])

    def _grown(self, grown: list[Grown]) -> Iterator[Result]:
        """Outputs of watched requests with all they have so far, one per request that has more."""
        by_request: dict[int, list[Grown]] = {}
        for one in grown:
            by_request.setdefault(one.sequence.request.number, []).append(one)
        for number, some in by_request.items():
            pending = self._pending.get(number)
            if pending is None:  # cancelled meanwhile
                continue
            for receiver in list(pending.receivers):
                request = receiver.request
                output = for_row(WRITING, self._results.partial, request, some, receiver.shown)
                if isinstance(output, QuireError):
                    output = self._finished(failed(request, output))
                    self._go_on_without(receiver, pending)
                yield receiver.index, output

    def _go_on_without(self, receiver: Receiver, pending: Pending) -> None:
        """Drop a receiver; nothing more is computed if no other waits for the answer."""
        pending.receivers.remove(receiver)
        if not pending.receivers:
            self._engine.abort(pending.samples)
        if not pending.receivers or receiver.request.number != pending.number:
            del self._pending[receiver.request.number]

    def _scored(self, path: Sequence, pending: Pending) -> Iterator[Result]:
        """One path of a tree has its scores. If it failed, the request fails, and nothing more of
        it is computed."""
        if path.error is not None:
            self._engine.abort([path])
            pending.samples, pending.num_left = [path], 0
        else:
            if path is not pending.samples[0]:
                pending.samples.append(path)
            pending.num_left -= 1
        if not pending.num_left:
            yield from self._done(pending)

    def _done(self, pending: Pending) -> Iterator[Result]:
        for number in {pending.number, *(r.request.number for r in pending.receivers)}:
            del self._pending[number]
        for one in pending.receivers:
            yield one.index, self._last(one, pending.samples)

    def _last(self, receiver: Receiver, samples: Many[Sequence]) -> RequestOutput:
        request = receiver.request
        whole = for_row(WRITING, self._results.output, request, samples)
        if isinstance(whole, QuireError):
            return self._finished(failed(request, whole))
        return receiver.shown.last(self._finished(whole))

    def _finished(self, output: RequestOutput) -> RequestOutput:
        self._on_finished(output)
        return output

    def _abandon(self) -> None:
        """Remove this run's requests from the engine, whatever state it is in."""
        pending = [sample for one in self._pending.values() for sample in one.samples]
        self._pending.clear()
        self._not_ready.clear()
        self._delayed.clear()
        try:
            self._engine.abort(pending)
            self._engine.drain()
        except BaseException:  # a second Ctrl-C, or a device that fails while it is emptied
            self._engine.reset()
            raise
        if not self._engine.idle:
            # The interruption came between two lines that belong together.
            self._engine.reset()
