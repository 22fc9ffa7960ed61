"""LLMEngine: a model whose steps the caller asks for, one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from quire.options import parse_options
from quire.session.session import Session
from quire.session.views import EngineView

if TYPE_CHECKING:
    from quire.options import EngineArgs


class LLMEngine(EngineView):
    """A model without a loop of its own.

    >>> engine = LLMEngine.from_engine_args(EngineArgs(model="smollm2"))
    >>> engine.add_request("a", "The sea", SamplingParams(max_tokens=8))
    >>> while engine.has_unfinished_requests():
    ...     for output in engine.step():
    ...         print(output.outputs[0].text)

    Options are those of `LLM`, whose `llm_engine` has the same methods.
    """

    def __init__(self, model: str, **options: Any) -> None:
        super().__init__(Session.open(model, parse_options(options)))

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs, *ignored: Any, **more: Any) -> Self:
        """With the options that an EngineArgs holds; what else is passed is about logging."""
        options = engine_args.given()
        return cls(options.pop("model"), **options)

    @classmethod
    def from_vllm_config(cls, vllm_config: Any, *ignored: Any, **more: Any) -> Self:
        """With what `EngineArgs.create_engine_config` returned."""
        from quire.session.engine_args import given_args  # takes a while to import

        return cls.from_engine_args(given_args(vllm_config))

    def shutdown(self, timeout: float | None = None) -> None:
        """Free the model's memory. Twice is fine; using the engine afterwards is not."""
        if session := getattr(self, "_session", None):
            session.close()

    def __del__(self) -> None:
        self.shutdown()
