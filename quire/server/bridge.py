"""Connects the server to the engine's process: sends rows, and gives their outputs to readers.

An engine that dies is started again. Rows of which no output was sent yet are asked once more. A
row that was on the device both times, or of which a client has a part, ends with an error.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from prometheus_client.registry import Collector

from quire.base.notes import note
from quire.errors import EngineError, InvalidRequest, ModelError, QuireError
from quire.openai_api.asks import Row
from quire.openai_api.errors import ApiError, bad, not_supported, server_error, too_long
from quire.openai_api.outputs import Output
from quire.server.adapters import RuntimeAdapters
from quire.server.engine_died import EngineDied
from quire.server.engine_life import COMMAND, EngineLife
from quire.server.engine_totals import EngineTotals
from quire.server.limits import AT_ONCE
from quire.server.metrics import Metrics
from quire.server.queueing import Queueing
from quire.server.row_reading import RowReading, encoded_row
from quire.server.services import LOCAL, EngineStats, Lane, Settings, State
from quire.server.wire import Message

# Deaths in a row, without a single output between them. To find the row of a batch that makes the
# engine die takes eight.
MOST_DEATHS = 16
MOST_UNREAD = 4096  # outputs that a reader has not taken; with more its row is given up
_LOOK_SECONDS = 5.0
# no_token_left: its own parameters contradicted each other.
_FAULTS = (
    *("invalid_prompt", "invalid_grammar", "invalid_params", "invalid_request"),
    "no_token_left",
)


class Bridge:
    """The engine of a server. `run` keeps it alive."""

    def __init__(self, settings: Settings, *, command: Sequence[str] = COMMAND) -> None:
        self._settings, self._command = settings, command
        self.state: State = "loading"
        self.facts: Mapping[str, Any] = {}
        self.queueing = Queueing(settings.max_queue, settings.max_queue_tokens)
        self.metrics = Metrics(settings.names[0])
        self.adapters = RuntimeAdapters()
        self._said: Mapping[str, Any] = {}  # the engine's last message about its own state
        self._totals = EngineTotals()
        self._life: EngineLife | None = None
        self._readings: dict[int, RowReading] = {}
        self._asking: dict[int, RowReading] = {}  # rows of the batch lane that are not sent yet
        # Outputs for the batch lane that wait for delivery: hundreds of rows may end in one step.
        self._late: deque[tuple[RowReading, Output | ApiError]] = deque()
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._next, self._deaths, self._restarts = 0, 0, 0
        self._changed = asyncio.Event()  # set when the state changes, then replaced
        self._failure: QuireError | None = None

    @property
    def capacity(self) -> int:
        return int(self.facts.get("capacity", 1))

    async def ready(self) -> None:
        while self.state in ("loading", "restarting"):
            await self._changed.wait()
        if self.state != "ready":
            raise self._unavailable()

    async def run(self) -> None:
        """Keep an engine running until cancelled; raises the error if the first cannot load."""
        try:
            while True:
                opening = {**self._settings.opening, "loaded": self.adapters.paths()}
                begun = EngineLife.begin(opening, command=self._command, hear=_pass_on)
                self._life = life = await begun
                watch = asyncio.create_task(_kill_if_hung(life))
                try:
                    async for message in life.messages():
                        self._take(message)
                finally:
                    watch.cancel()
                    held = set(life.board.rows())
                    code = await life.end()
                self._died(held, code, life)
        except asyncio.CancelledError:
            self._fail_all(self._unavailable())
            raise
        except QuireError:
            self._set("failed")
            self._fail_all(self._unavailable())
            raise

    def _set(self, state: State) -> None:
        if self.state != "draining" or state == "failed":
            self.state = state
        self._changed.set()
        self._changed = asyncio.Event()

    def drain(self) -> None:
        """Refuse new rows from now on."""
        self._set("draining")

    async def drained(self) -> None:
        """Wait until no interactive row runs any more; rows of batches are not waited for."""
        while any(one.lane == "interactive" for one in self._readings.values()):
            await asyncio.sleep(0.02)

    def give_all_up(self) -> None:
        """End all rows, with an error for each reader."""
        self._fail_all(self._unavailable())

    def _take(self, message: Message) -> None:
        if message.kind == "delta":
            self._deaths = 0
            for number, output in message.rows:
                self._deliver(number, output)
        elif message.kind == "refused":
            self._deliver(message.id, self._refusal(message))
        elif message.kind == "ready":
            self.facts = message.facts
            self._set("ready")
            for reading in self._readings.values():
                self._ask(reading)
        elif message.kind == "metrics":
            self._said = message.facts
            self._totals.take(message.facts)
        elif message.kind == "called":
            self._called(message)
        elif message.kind == "failed":
            self._failure = _start_error(message)

    def _deliver(self, number: int, one: Output | ApiError) -> None:
        reading = self._readings.get(number)
        if reading is None:  # the row was given up
            return
        if reading.lane == "interactive":
            self._give(reading, one)
            return
        if not self._late:
            asyncio.get_running_loop().call_soon(self._deliver_late)
        self._late.append((reading, one))

    def _deliver_late(self, most: int = AT_ONCE) -> None:
        """Deliver to at most so many readers of the batch lane, then let other tasks run."""
        for _ in range(min(most, len(self._late))):
            self._give(*self._late.popleft())
        if self._late:
            asyncio.get_running_loop().call_soon(self._deliver_late)

    def _give(self, reading: RowReading, one: Output | ApiError) -> None:
        if reading.number not in self._readings:  # the row was given up meanwhile
            return
        if reading.num_unread >= MOST_UNREAD:
            self._send({"kind": "abort", "ids": [reading.number]})
            one = server_error("the answer was not read in time", code="slow_reader")
        reading.give(one)
        if reading.is_over:
            self._readings.pop(reading.number, None)

    def _died(self, held: set[int], code: int, life: EngineLife) -> None:
        """Handle the death of an engine that held these rows."""
        self._deliver_late(len(self._late))
        self._life, self._said = None, {}
        self._totals.engine_ended()
        failure, self._failure = self._failure, None
        if failure is not None and not self.facts:
            raise failure
        self._deaths += 1
        if self._deaths >= MOST_DEATHS or not self.facts:
            raise EngineError(
                f"the engine ended {self._deaths} times without an answer (code {code}); it said "
                f"last: {life.stderr_tail[-1000:]}"
            )
        note(f"the engine ended ({failure or f'code {code}'}) and is started again")
        self._restarts += 1
        self._set("restarting")
        of_batches = {n for n, reading in self._readings.items() if reading.lane == "batch"}
        death = partial(life.death, code, others=not held <= of_batches)
        for future in self._calls.values():
            if not future.done():  # it is done if the caller was cancelled
                future.set_exception(EngineDied(death(asked_at=0.0)))
        self._calls.clear()
        for reading in list(self._readings.values()):
            reading.num_deaths += reading.number in held
            if reading.was_shown or reading.num_deaths > reading.most_deaths:
                self._readings.pop(reading.number)
                reading.give(EngineDied(death(asked_at=reading.asked_at)))

    def _fail_all(self, error: ApiError) -> None:
        for reading in list(self._readings.values()):
            reading.give(error)
        self._readings.clear()
        for future in self._calls.values():
            future.cancel()

    def _unavailable(self) -> ApiError:
        words = {"draining": "the server is stopping", "failed": "the engine cannot be started"}
        why = words.get(self.state, "the server is stopping")
        return server_error(why, code="unavailable", status=503, retry=self.state != "failed")

    def _send(self, message: Mapping[str, Any]) -> None:
        if self._life is not None:
            self._life.send(message)

    def _ask(self, reading: RowReading) -> None:
        reading.asked_at = time.monotonic()
        if reading.lane == "interactive":
            self._send({"kind": "ask", "rows": [reading.message]})
            return
        if not self._asking:
            asyncio.get_running_loop().call_soon(self._ask_late)
        self._asking[reading.number] = reading

    def _ask_late(self) -> None:
        """Send the waiting rows of batches in one message: each message wakes engine threads."""
        asking, self._asking = self._asking, {}
        rows = [one.message for one in asking.values() if one.number in self._readings]
        if rows:
            self._send({"kind": "ask", "rows": rows})

    async def generate(
        self, row: Row, *, lane: Lane = "interactive", key_id: str = LOCAL
    ) -> AsyncGenerator[Output, None]:
        if self.state in ("draining", "failed"):
            raise self._unavailable()
        with self.queueing.slot(row, lane, self.capacity, key_id):
            self._next += 1
            whose = {"tenant": key_id, "salt": salt_of(row, key_id)}
            message = {**row, "id": self._next, "lane": lane, **whose}
            once = message.pop("once", False)
            reading = RowReading(self._next, encoded_row(message), lane, is_asked_once=once)
            self._readings[reading.number] = reading
            if self.state in ("ready", "draining") and self._life is not None:
                self._ask(reading)
            came: Output | None = None
            try:
                while came is None or not came.finished:
                    one = await reading.next()
                    if isinstance(one, ApiError):
                        raise one
                    came = one
                    yield came
            finally:
                if came is not None:  # tokens for a client that left count in the metrics, too
                    self.queueing.observe(lane, came)
                    self.metrics.observe(came)
                if self._readings.pop(reading.number, None) is not None:
                    self._send({"kind": "abort", "ids": [reading.number]})

    async def call(self, what: str, **given: Any) -> dict[str, Any]:
        await self.ready()
        self._next += 1
        number, future = self._next, asyncio.get_running_loop().create_future()
        self._calls[number] = future
        try:
            self._send({"kind": "call", "id": number, "what": what, **given})
            value: dict[str, Any] = await future
            return value
        finally:
            self._calls.pop(number, None)

    def _called(self, message: Message) -> None:
        future = self._calls.get(message.id)
        if future is None or future.done():
            return
        if message.error_type:
            future.set_exception(self._refusal(message))
        else:
            future.set_result(message.value)

    def _refusal(self, message: Message) -> ApiError:
        """The engine's error for a row, as an ApiError for the reader."""
        kind, why, param = message.error_type, message.error, message.param
        if kind in ("prompt_too_long", "does_not_fit"):
            return too_long(int(self.facts.get("max_model_len", 0)), why, param=param)
        if kind == "not_supported":
            return not_supported(why, param=param)
        if kind in _FAULTS:
            return bad(why, param=param, code=kind if kind == "no_token_left" else None)
        return server_error(why, code=kind)

    def stats(self) -> EngineStats:
        said, queueing = self._said, self.queueing
        running_batch = int(said.get("running_batch", 0))
        running = int(said.get("running", 0)) - running_batch
        lanes = [one.lane for one in self._readings.values()]
        num_batch = lanes.count("batch")
        return EngineStats(
            self.state,
            running=running,
            running_batch=running_batch,
            waiting=max(len(lanes) - num_batch - running, 0),
            waiting_batch=max(num_batch - running_batch, 0),
            kv_use=float(said.get("kv_use", 0.0)),
            unfinished_prompt_tokens=int(said.get("unfinished_prompt_tokens", 0)),
            unfinished_output_tokens=int(said.get("unfinished_output_tokens", 0)),
            restarts=self._restarts,
            preemptions=self._totals.preemptions,
            step_limits=self._totals.step_limits,
            step_tokens=self._totals.step_tokens,
            **queueing.totals(),
        )

    def add_metrics(self, collector: Collector) -> None:
        self.metrics.registry.register(collector)

    def metrics_text(self) -> bytes:
        return self.metrics.text(self.stats(), for_vllm=self._settings.vllm_metrics)


def salt_of(row: Row, key_id: str) -> str:
    """The cache salt of a row, which separates the cached prefixes of one key from all others. So
    the time to an answer does not show what other keys have asked."""
    given = row.get("salt", "")
    if key_id == LOCAL and not given:
        return ""
    return hashlib.sha256(f"{key_id}\0{given}".encode("utf-8", "replace")).hexdigest()[:32]


def _start_error(message: Message) -> QuireError:
    """The error of an engine that could not start, as the error that `quire serve` ends with."""
    kinds: dict[str, type[QuireError]] = {"model": ModelError, "usage": InvalidRequest}
    return kinds.get(message.error_type, EngineError)(message.error)


def _pass_on(line: str) -> None:
    """Print a line of the engine's stderr: a note of its own, or the output of a library."""
    note(line.removeprefix("quire: "))


async def _kill_if_hung(life: EngineLife) -> None:
    with suppress(asyncio.CancelledError):
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if life.board.is_hung():
                note("the engine does not move any more and is ended")
                life.kill()
