"""The engine of a server: takes rows from the server's messages, and gives outputs to the writer.

A few other threads make prompts and parameters of rows, so that neither a long text nor a slow
template delays the engine's next step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from quire.base.boundary import for_row, reason
from quire.base.notes import note
from quire.errors import EngineError, InvalidRequest, QuireError, RowError
from quire.inputs.reasoning import opens_reasoning
from quire.inputs.thinking import ThoughtReader
from quire.inputs.thoughts import begins_in_format
from quire.jobs.child.requests import error_text, error_type, result_or_error
from quire.outputs import RequestOutput
from quire.replicas.board import Board, Phase
from quire.replicas.child.heartbeat import Heartbeat
from quire.replicas.child.tally import session_facts
from quire.replicas.child.watched import WatchedExecutor
from quire.replicas.wire import Message
from quire.sampling_params import SamplingParams
from quire.server.child.adapters import ServedAdapters
from quire.server.child.calls import Calls
from quire.server.child.offsets import offsets_wanted
from quire.server.child.outputs import Place
from quire.server.child.preparing import Prepared, Preparing
from quire.server.child.reasoning import ReasoningCount
from quire.server.child.threads import PreparingThreads, Taken
from quire.server.child.writer import Writer, encoded
from quire.session.engine_thread import EngineThread, News, Submission
from quire.session.metrics import Histogram, Metric

if TYPE_CHECKING:
    from quire.session.session import Session

Made = TypeVar("Made")
TELL_SECONDS = 0.5
_NOT_PREPARED = SamplingParams()  # stands in until a row is prepared, and is not read


class ServingEngine:
    """Answers rows until the process ends."""

    def __init__(
        self,
        session: Session,
        board: Board,
        writer: Writer,
        adapters: ServedAdapters,
    ) -> None:
        """`adapters` are those that requests may name as their model."""
        self._session, self._board, self._writer = session, board, writer
        self._adapters = adapters
        self._preparing = Preparing(session)
        self._calls = Calls(session, self._preparing)
        # A thread of its own, since to count the tokens of a long text takes long.
        self._call_threads = ThreadPoolExecutor(1, "quire-calls")
        self._asked: dict[int, Submission] = {}  # running rows, by the server's number
        model = session.model
        self._reasoning: ReasoningCount | None = None
        if model.tokenizer is not None:
            self._reasoning = ReasoningCount(model.tokenizer, model.config.reasoning_parser)
        self._told_at = 0.0
        engine = session.engine
        engine.executor = WatchedExecutor(engine.executor, board, self._held)
        self._engine = EngineThread(
            session,
            self._hand_over,
            on_idle=lambda: board.move(Phase.IDLE),
            is_behind=writer.is_behind,
            hurried=True,
        )
        self._threads = PreparingThreads(self._prepare, self._engine.wait_for_room)
        Heartbeat(board, self._engine.thread)

    def facts(self) -> Message:
        model = self._session.model
        tokenizer = model.tokenizer
        return {
            **session_facts(self._session),
            "model": model.name,
            "max_model_len": model.config.max_model_len,
            "vocab_size": model.spec.vocab_size,
            "chat": tokenizer is not None and bool(tokenizer.chat_templates),
            "tasks": self._session.supported_tasks,
            "bounds_thoughts": ThoughtReader(
                tokenizer, model.config.reasoning_parser, model.config.reasoning
            ).bounds,
            "labels": _labels(model.hf_config),
            "sound_seconds": self._session.media.sound_seconds,
        }

    def take(self, message: Message) -> None:
        """Handle a message of the server."""
        if message["kind"] == "ask":
            some = [(row, self._taken(row)) for row in message["rows"]]
            self._threads.prepare(some)
        elif message["kind"] == "abort":
            for number in message["ids"]:
                if (asked := self._asked.pop(number, None)) is not None:
                    self._engine.give_up(asked)
        elif message["kind"] == "call":
            self._call_threads.submit(self._answer_call, message)

    def _taken(self, row: Message) -> Submission:
        """A submission for the row at once, so that it can be aborted while it is prepared."""
        params = row.get("params", {})
        place = Place(
            row["id"],
            bool(row.get("prompt_back")),
            num_top=params.get("logprobs"),
            num_prompt_top=params.get("prompt_logprobs"),
            reasoning=self._reasoning if "messages" in row else None,
            scored="beam" not in row,
        )
        asked = Submission(
            None,
            _NOT_PREPARED,
            own_params=True,
            priority=row.get("priority", 0),
            request_id=str(row["id"]),
            reader=place,
            background=row.get("lane") == "batch",
            tenant=row.get("tenant", ""),
            chat="messages" in row,
            tools=row["chat"]["tools"] if row.get("tools") else None,
            lora_request=self._adapters.find(row.get("model", "")),
        )
        self._asked[place.id] = asked
        return asked

    def _prepare(self, some: Sequence[Taken]) -> None:
        """Make requests of these rows for the engine, and refuse invalid rows."""
        some = [one for one in some if not one[1].given_up]
        made = _attempt(lambda: self._preparing.prepare_each([row for row, _ in some]))
        if isinstance(made, QuireError) and len(some) > 1:  # one by one, to find the invalid one
            for one in some:
                self._prepare([one])
            return
        each = [made] if isinstance(made, QuireError) else made
        ready: list[Submission] = []
        for (row, asked), found in zip(some, each, strict=True):
            served = _attempt(partial(self._adapters.check, row.get("model", "")))
            failed = served or self._filled(asked, found)
            if isinstance(failed, QuireError):
                self._refuse(asked, failed)
            else:
                ready.append(asked)
        failed = _attempt(partial(self._engine.ask, *ready))
        if isinstance(failed, QuireError) and self._engine.failure is None:
            for asked in ready:
                self._refuse(asked, failed)

    def _filled(self, asked: Submission, found: Prepared | QuireError) -> QuireError | None:
        """Completes the submission of a row; returns its error, if it has one."""
        if isinstance(found, QuireError):
            return found
        return _attempt(partial(self._fill, asked, found))

    def _fill(self, asked: Submission, made: Prepared) -> None:
        asked.prompt, asked.params = made.prompt, made.params
        asked.tokenization_kwargs, asked.search = made.tokenization, made.search
        asked.reader.pooled, asked.reader.hearing = made.pooled, made.hearing
        if not asked.chat and isinstance(made.params, SamplingParams):
            asked.reader.offsets = offsets_wanted(self._session.model.tokenizer, made.params)
        text = made.prompt.get("prompt") if isinstance(made.prompt, dict) else None
        if asked.chat and isinstance(text, str):
            tag = self._session.model.config.reasoning_parser
            asked.reader.began_reasoning = opens_reasoning(text, tag) and not (
                isinstance(made.params, SamplingParams)
                and begins_in_format(made.params.structured_outputs)
            )

    def _refuse(self, asked: Submission, error: QuireError) -> None:
        self._writer.send(self._refusal(asked, error))

    def _refusal(self, asked: Submission, error: QuireError) -> Message:
        self._asked.pop(asked.reader.id, None)
        return {"kind": "refused", "id": asked.reader.id, **_about(error)}

    def _hand_over(self, news: list[News]) -> None:
        """Give the outputs of a step to the writer, as one message. On the engine's thread.

        After a failure of the engine nothing is sent for its rows: the process ends, and the server
        asks for them again, or finds the row that caused it."""
        made: list[tuple[Submission, RequestOutput]] = []
        for asked, one in news:
            if isinstance(one, RequestOutput) and one.error is None:
                if self._goes_on(asked, one):
                    continue
                if one.finished:
                    self._asked.pop(asked.reader.id, None)
                made.append((asked, one))
                continue
            failure = one.error if isinstance(one, RequestOutput) else one
            if isinstance(failure, QuireError) and failure is not self._engine.failure:
                self._refuse(asked, failure)
        if made:
            self._writer.send(partial(self._told_of, made))

    def _goes_on(self, asked: Submission, output: RequestOutput) -> bool:
        """Whether the row is a piece of a sound that needs another request, which is submitted."""
        place = asked.reader
        if place.hearing is None or asked.given_up:
            return False
        hear = self._preparing.transcriber.after
        then = for_row("it was heard", hear, place.hearing, output.outputs[0])
        if isinstance(then, QuireError):
            self._refuse(asked, then)
            return True
        place.hearing = then
        if then.is_over:
            return False
        asked.number = -1
        row = {"sound": {}, "hearing": then, "salt": asked.prompt.get("cache_salt")}
        self._threads.prepare([(row, asked)])
        return True

    def _told_of(self, made: list[tuple[Submission, RequestOutput]]) -> list[Message]:
        """The messages of a step: [number, output] for each row that has one. On the writer's
        thread."""
        rows: list[tuple[int, msgspec.Raw]] = []
        failed: list[Message] = []
        for asked, output in made:
            place = asked.reader
            data = for_row("its output was sent", _data, place, output)
            if isinstance(data, QuireError):
                self._engine.give_up(asked)
                failed.append(self._refusal(asked, data))
            else:
                rows.append((place.id, msgspec.Raw(data)))
        return [{"kind": "delta", "rows": rows}, *failed]

    def _held(self) -> list[int]:
        known = self._engine.in_engine
        found = self._session.engine.scheduler.rows.sequences
        numbers = {sequence.request.number for sequence in found if sequence is not None}
        return [known[number].reader.id for number in numbers if number in known]

    def tell(self) -> None:
        """Send metrics, at intervals."""
        now = time.monotonic()
        if now - self._told_at < TELL_SECONDS:
            return
        self._told_at = now
        scheduler = self._session.engine.scheduler
        rows = scheduler.rows
        background = [s for s in rows.sequences if s is not None and s.request.background]
        live = [row for row, sequence in enumerate(rows.sequences) if sequence is not None]
        facts = {
            "unfinished_prompt_tokens": int(rows.num_prompt[live].sum()),
            "unfinished_output_tokens": int((rows.known[live] - rows.num_prompt[live]).sum()),
            "running": scheduler.num_running,
            "running_batch": len(background),
            "waiting": len(scheduler.waiting),
            "kv_use": round(scheduler.pool.num_used / scheduler.pool.num_blocks, 4),
            "preemptions": scheduler.num_preemptions,
            "steps": self._session.engine.num_steps,
            **_step_tokens(self._session.read_metrics()),
        }
        self._writer.send({"kind": "metrics", "facts": facts})

    @property
    def failure(self) -> BaseException | None:
        return self._engine.failure

    def _called(self, message: Message) -> Mapping[str, Any]:
        if message["what"] == "load_adapter":
            self._adapters.load(message["name"], message["path"])
            return {}
        if message["what"] == "unload_adapter":
            self._adapters.unload(message["name"])
            return {}
        return self._calls.answer(message)

    def _answer_call(self, message: Message) -> None:
        made = _attempt(lambda: self._called(message))
        answer: dict[str, Any] = {"kind": "called", "id": message["id"]}
        if isinstance(made, QuireError):
            answer |= _about(made)
        else:
            answer["value"] = made
        self._writer.send(answer)


def _data(place: Place, output: RequestOutput) -> bytes:
    return encoded(place.output(output))


def _attempt(make: Callable[[], Made]) -> Made | QuireError:
    """The result of the call, or the error that its row ends with, of any type: an exception on a
    pool's thread would be lost, and the row's reader would wait for ever."""
    try:
        return result_or_error(make)
    except (MemoryError, EngineError) as error:
        # Only for the log: the text may name files of this machine or quote a library.
        note(f"a row could not be prepared: {reason(error)}")
        why = "memory ran out" if isinstance(error, MemoryError) else "the engine cannot go on"
        return RowError(f"this row could not be prepared: {why}")


def _about(error: QuireError) -> Message:
    """The fields of a message about an error, with the name of the faulty field if it is known."""
    param = error.parameter if isinstance(error, InvalidRequest) else None
    return {"error_type": error_type(error), "error": error_text(error), "param": param}


def _step_tokens(metrics: list[Metric]) -> Message:
    """The histogram of tokens per step: counts up to each limit; the last bucket has no limit."""
    for one in metrics:
        if isinstance(one, Histogram) and one.name == "vllm:iteration_tokens_total":
            return {"step_limits": [*one.buckets], "step_tokens": [*one.buckets.values(), one.sum]}
    return {}


def _labels(config: Mapping[str, Any]) -> list[str]:
    """The names of a classifier's labels, by number; empty unless the config names them all."""
    named = config.get("id2label")
    if not isinstance(named, Mapping):
        return []
    by_number = {str(number): str(label) for number, label in named.items()}
    numbers = [str(i) for i in range(len(by_number))]
    return [by_number[i] for i in numbers] if by_number.keys() == set(numbers) else []
