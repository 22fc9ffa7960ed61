"""A session without a model for the server's engine process: the real scheduler and drive loop over
the fake executor of the jobs' tests, words that bring it down included."""

from __future__ import annotations

from typing import Any

from quire.session.loaded_model import LoadedModel
from quire.session.session import Session
from tests.jobs.fake_engine import FaultyExecutor, _config, _spec, tokenizer


def make(model: str, options: dict[str, Any]) -> Session:
    """The model is "fake", with settings behind colons: rows=N at once, delay=S seconds a step."""
    given = dict(word.split("=") for word in model.split(":")[1:])
    config = _config(max_num_seqs=int(given.get("rows", 64)))
    executor = FaultyExecutor(delay=float(given.get("delay", 0)), hunger=0, layers=0)
    loaded = LoadedModel(
        "fake", _spec(), config, executor, executor.start(), tokenizer(chat=True), {}
    )
    return Session(loaded)
