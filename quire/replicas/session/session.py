"""A session without an engine: it reads and numbers requests, and replicas answer them.

`LLM(data_parallel_size=d)` holds it instead of a Session. Requests are made, checked and given
their noise keys here, so that an answer does not depend on the replica that computes it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import fields, replace
from typing import Any, NoReturn

from quire.base.notes import note
from quire.config import EngineConfig
from quire.errors import InvalidOption, NotSupported, RowError
from quire.executor.plain_data import decode, encode
from quire.options import DeviceFacts, Options, resolve
from quire.outputs import RequestOutput
from quire.plan.prefixes import PrefixTree
from quire.replicas.engine_process import EngineProcess
from quire.replicas.places import places
from quire.replicas.replica_set import ReplicaSet
from quire.replicas.session.no_executor import NoExecutor
from quire.replicas.task import Task
from quire.replicas.wire import Message
from quire.request import Request
from quire.run import Refused, Result, Window
from quire.session.loaded_model import LoadedModel
from quire.session.loading import ModelParts, read_parts
from quire.session.session import Session

COMMAND = (sys.executable, "-m", "quire.replicas.child")
PROMPT_SHARE = 0.125  # the cost of a prompt's token, as a share of that of a written token
_WAIT = 0.05  # seconds between two checks for Ctrl-C
_ALONE = "is not built for data_parallel_size > 1: use an LLM without replicas"


class ReplicaSession(Session):
    """Everything that lives as long as an LLM with replicas."""

    def __init__(self, model: LoadedModel, replicas: ReplicaSet, receiver: _Receiver) -> None:
        super().__init__(model)
        self._replicas, self._receiver = replicas, receiver

    @classmethod
    def open_replicas(cls, model: str, options: Options, given: dict[str, Any]) -> ReplicaSession:
        """Start the replicas, and return when all of them are ready."""
        plain = {n: v for n, v in given.items() if n not in _NOT_FOR_REPLICAS and v is not None}
        try:
            json.dumps(plain)
        except (TypeError, ValueError) as error:
            raise InvalidOption(
                f"with data_parallel_size, options go to other processes and are plain values: "
                f"{error}"
            ) from None
        where = places(options.data_parallel_size, None, plain)
        openings = [
            {"kind": "open", "model": str(model), "options": {**place.options, **plain}}
            for place in where
        ]
        receiver = _Receiver()

        def start(number: int, opening: Message) -> EngineProcess:
            environment = where[number].environment
            return EngineProcess(opening, command=COMMAND, hear=_hear, environment=environment)

        replicas = ReplicaSet(openings, start, receiver)
        replicas.begin()
        try:
            parts = read_parts(model, options)  # while the replicas load
            while not replicas.all_ready:
                replicas.turn(0.2)
            return cls(_as_chosen(str(model), parts, options, receiver.facts), replicas, receiver)
        except BaseException:
            replicas.close()
            raise

    def run(
        self, windows: Iterable[Window], between_steps: Callable[[], None]
    ) -> Generator[Result, None, None]:
        """Deal these windows to the replicas; yields each result as it comes."""
        feeder, waiting = self._replicas.feeder, dict[int, int]()  # request number -> its index
        source, seen = iter(windows), 0
        feeder.exhausted = False
        try:
            while not (feeder.exhausted and not waiting):
                if not feeder.exhausted and feeder.num_wanted > 0:
                    window = next(source, None)
                    feeder.exhausted = window is None
                    for place, item in enumerate(window or (), start=seen):
                        if isinstance(item, Refused):
                            yield place, RequestOutput.failed(str(item.number), item.error)
                        else:
                            waiting[item.number] = place
                    seen += len(window or ())
                    self._add([r for r in window or () if isinstance(r, Request)])
                self._replicas.turn(0.0 if not feeder.exhausted else _WAIT)
                between_steps()
                for request, output in self._receiver.take():
                    yield waiting.pop(request.number), self._whole(request, output)
        finally:
            self._receiver.clear()
            self._replicas.abandon()

    def _whole(self, request: Request, output: RequestOutput) -> RequestOutput:
        """Add to an output what never left this process, and learn from it."""
        output.prompt, output.prompt_token_ids = request.prompt, request.prompt_ids.tolist()
        for answer in output.outputs:
            stopped = answer.finish_reason == "stop"
            self._lengths.observe(request, len(answer.token_ids), stopped=stopped)
        self._metrics.count(output)
        return output

    def _add(self, requests: Sequence[Request]) -> None:
        beginnings = _beginnings(requests, self.model.config.block_size)
        for request, beginning in zip(requests, beginnings, strict=True):
            if request.watched:
                raise NotSupported("stream(tokens=True) " + _ALONE)
            cost = request.params.n * self._lengths.expected(request)
            cost += PROMPT_SHARE * request.num_prompt
            asked = {"request": encode(replace(request, prompt=None))}
            size = 16 * request.num_prompt
            self._replicas.add(Task(request.number, cost, asked, request, size, beginning))

    @property
    def num_replicas(self) -> int:
        return self._replicas.num_replicas

    def close(self) -> None:
        if not self.is_closed:
            super().close()
            self._replicas.close()

    def _refuse(self, *given: Any, **more: Any) -> NoReturn:
        raise NotSupported("this method " + _ALONE)

    new_run = plan = sleep = wake_up = load_weights = kv_cache = _refuse
    set_tokenizer = forget_prefixes = forget_media = _refuse


class _Receiver:
    """Collects outputs until a call takes them."""

    def __init__(self) -> None:
        self.facts: Message = {}
        self._done: list[tuple[Request, RequestOutput]] = []

    def take(self) -> list[tuple[Request, RequestOutput]]:
        done, self._done = self._done, []
        return done

    def clear(self) -> None:
        self._done.clear()

    def answered(self, task: Task, message: Message) -> None:
        self._done.append((task.row, decode(message["output"])))

    def failed(self, task: Task, kind: str, text: str) -> None:
        request: Request = task.row
        error = RowError(f"{text} ({kind})")
        self._done.append((request, RequestOutput.failed(str(request.number), error)))

    def ready(self, facts: Message) -> None:
        self.facts = self.facts or facts

    def metrics(self, message: Message) -> None:
        """Ignored: they are about one replica; requests of all replicas are counted here."""

    def note(self, line: str) -> None:
        _hear(line)


_NOT_FOR_REPLICAS = ("data_parallel_size", "distributed_executor_backend", "data_parallel_backend")


def _hear(line: str) -> None:
    note(line.removeprefix("quire: "))


def _as_chosen(name: str, parts: ModelParts, options: Options, facts: Message) -> LoadedModel:
    """The model's description, with the decisions that the replicas' engines made."""
    device = DeviceFacts(options.device or "cpu", 1 << 34, 1 << 34, num_cores=1)
    plain = replace(options, quantization=None, dtype=None, kv_cache_dtype="auto")
    config = resolve(plain, parts.spec, device)
    known = {field.name for field in fields(EngineConfig)}
    config = replace(config, **{n: v for n, v in facts["config"].items() if n in known})
    executor = NoExecutor(int(facts["num_blocks"]))
    return LoadedModel(
        name,
        parts.spec,
        config,
        executor,
        executor.facts,
        parts.tokenizer,
        parts.generation_config,
        parts.hf_config,
    )


def _beginnings(requests: Sequence[Request], block_size: int) -> list[int | None]:
    """For each request a number that names the smallest group of prompts with its beginning."""
    found: list[int | None] = [None] * len(requests)
    tree = PrefixTree.of(
        [r.prompt_ids for r in requests],
        block_size=block_size,
        salts=[r.cache_salt for r in requests],
    )
    groups = tree.groups()
    for group in sorted(groups, key=lambda g: g.parent is not None):
        for member in group.members:
            found[member] = requests[group.members[0]].number
    return found
