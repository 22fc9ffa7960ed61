"""A session without a model for the server's engine process: the real scheduler and drive loop over
the fake executor of the jobs' tests, words that bring it down included."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from quire.errors import EngineError, QuireError
from quire.openai_api.outputs import Output
from quire.outputs import RequestOutput
from quire.replicas.wire import Message
from quire.server.child.outputs import Place
from quire.server.child.preparing import Prepared, Preparing
from quire.session.loaded_model import LoadedModel
from quire.session.session import Session
from quire.step import StepPlan
from tests.fakes import Done
from tests.faults_of_rows import fail, put_faults
from tests.jobs.fake_engine import HUGE, FaultyExecutor, _config, _spec, tokenizer


class FailingExecutor(FaultyExecutor):
    """Cannot go on once the answer to a prompt with <huge> in it has some tokens, and says so."""

    def submit(self, plan: StepPlan) -> Done:
        done = super().submit(plan)
        answers = [row for row in self.rows.values() if HUGE in row.start.prompt_ids]
        if any(row.length > len(row.start.prompt_ids) + 3 for row in answers):
            raise EngineError("the device failed: made up")
        return done


def make(model: str, options: dict[str, Any]) -> Session:
    """The model is "fake", with settings behind colons: rows=N at once, delay=S seconds a step."""
    given = dict(word.split("=") for word in model.split(":")[1:])
    config = _config(max_num_seqs=int(given.get("rows", 64)))
    executor = FailingExecutor(delay=float(given.get("delay", 0)), hunger=0, layers=0)
    loaded = LoadedModel(
        "fake", _spec(), config, executor, executor.start(), tokenizer(chat=True), {}
    )
    return Session(loaded)


def make_faulty(model: str, options: dict[str, Any]) -> Session:
    """The same, with the faults of tests/faults_of_rows.py, and two more places for them."""
    put_faults()
    as_it_was, prepare = Place.output, Preparing.prepare_each

    def send(self: Place, output: RequestOutput) -> Output:
        fail("sending", output.prompt)
        return as_it_was(self, output)

    def read(self: Preparing, rows: Sequence[Message]) -> list[Prepared | QuireError]:
        for row in rows:
            fail("preparing", row.get("prompt"))
            if "no memory at preparing" in str(row.get("prompt")):
                raise MemoryError("made up")
            if "a slow host" in str(row.get("messages")):
                time.sleep(2)
        return prepare(self, rows)

    Place.output, Preparing.prepare_each = send, read  # type: ignore[method-assign]
    return make(model, options)
