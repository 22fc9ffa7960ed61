"""The command `quire` with a device that computes nothing: only the host's time is left.

    python -m benchmarks.no_model serve DIRECTORY --no-key

Everything but the executor is the real thing, with the limits of a large GPU. A pass takes the
seconds that QUIRE_PASS names, "0.002+0.000003" for two milliseconds and three microseconds a token,
as a GPU would: the host may do something else meanwhile. Without QUIRE_PASS it takes no time.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import numpy as np

from quire.cli import main
from quire.executor.executor import ExecutorFacts
from quire.jobs import job
from quire.jobs.child.generate import SessionEngine
from quire.jobs.supervise import supervisor
from quire.options import DeviceFacts, parse_options, resolve
from quire.replicas.board import Board
from quire.replicas.wire import Message
from quire.server import engine_life, serve
from quire.session.loaded_model import LoadedModel
from quire.session.loading import load_tokenizer
from quire.session.session import Session
from quire.step import StepPlan, StepResult
from quire.steps.handles import Handles
from quire.weights.source import locate

GPU = DeviceFacts("cuda", 140 << 30, 120 << 30, 16, ("bfloat16",))
NAME = "benchmarks.no_model"
NUM_BLOCKS = 70_000
WORDS = 300, 4_000  # token ids of letters: whatever is drawn is text


@dataclass(frozen=True, slots=True)
class Passing:
    """A plan on the device, until a moment."""

    value: StepResult
    until: float

    def result(self) -> StepResult:
        left = self.until - time.monotonic()
        if left > 0:
            time.sleep(left)
        return self.value


@dataclass(slots=True)
class NoModel:
    """An executor that draws words by chance and takes the time that QUIRE_PASS names."""

    fixed: float = 0.0  # seconds of a pass
    each: float = 0.0  # and of a token in it
    handles: Handles = field(default_factory=Handles)
    _busy_until: float = 0.0
    _random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def start(self) -> ExecutorFacts:
        return ExecutorFacts(NUM_BLOCKS, "cuda:0", "bfloat16")

    def submit(self, plan: StepPlan) -> Passing:
        count = len(plan.sampled_rows())
        tokens = self._random.integers(*WORDS, (count, plan.repeat), np.int32)
        counts = np.full(count, plan.repeat, np.int32)
        seconds = self.fixed * plan.repeat + self.each * plan.num_tokens
        self._busy_until = max(self._busy_until, time.monotonic()) + seconds
        return Passing(StepResult(tokens, counts), self._busy_until)

    def reset(self) -> None: ...

    def close(self) -> None: ...


def session(model: str, options: dict[str, Any]) -> Session:
    """For `python -m quire.server.child --session`."""
    files, given = locate(model, weights=False), parse_options(options)
    spec = files.spec(None)
    fixed, _, each = os.environ.get("QUIRE_PASS", "0").partition("+")
    executor = NoModel(float(fixed), float(each or 0))
    return Session(
        LoadedModel(
            name="none",
            spec=spec,
            config=resolve(given, spec, GPU),
            executor=cast(Any, executor),
            facts=executor.start(),
            tokenizer=load_tokenizer(files, given),
            generation_config={},
        )
    )


def engine(opening: Message, board: Board) -> SessionEngine:
    """For `python -m quire.jobs.child --engine`."""
    made = session(opening["model"], dict(opening["options"]))
    return SessionEngine(made, opening, board, {})


if __name__ == "__main__":
    job.COMMAND = (*supervisor.COMMAND, "--engine", f"{NAME}:engine")  # type: ignore[attr-defined,assignment]
    command = (*engine_life.COMMAND, "--session", f"{NAME}:session")
    serve.Serving = partial(serve.Serving, command=command)  # type: ignore[assignment, misc]
    main()
