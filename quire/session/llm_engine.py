"""LLMEngine: a model that computes one step at each call of `step`."""

from __future__ import annotations

from typing import Any

from quire.options import parse_options
from quire.session.session import Session
from quire.session.views import EngineView, MadeOfArgs


class LLMEngine(MadeOfArgs, EngineView):
    """A model whose loop is the caller's.

    >>> engine = LLMEngine.from_engine_args(EngineArgs(model="smollm2"))
    >>> engine.add_request("a", "The sea", SamplingParams(max_tokens=8))
    >>> while engine.has_unfinished_requests():
    ...     for output in engine.step():
    ...         print(output.outputs[0].text)

    Options are those of `LLM`, whose `llm_engine` has the same methods.
    """

    def __init__(self, model: str, **options: Any) -> None:
        super().__init__(Session.open(model, parse_options(options)))

    def shutdown(self, timeout: float | None = None) -> None:
        """Free the model's memory. It may be called twice; the engine cannot be used afterwards."""
        if session := getattr(self, "_session", None):
            session.close()

    def __del__(self) -> None:
        self.shutdown()
