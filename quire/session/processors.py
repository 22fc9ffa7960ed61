"""The functions that edit the logits of a request: its own, and those of the LLM's classes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from quire.config import EngineConfig, VllmConfig
from quire.errors import InvalidParams, QuireError
from quire.sampling.batch_interface import make_processor
from quire.sampling.call_threads import attempt
from quire.sampling_params import SamplingParams


class RequestProcessors:
    """The classes of `LLM(logits_processors=...)`, as they apply to single requests."""

    def __init__(self, config: EngineConfig, vocab_size: int) -> None:
        self._classes = (*config.batch_processors, *config.request_processors)
        self._adapters: list[Any] = []
        if config.request_processors:
            import torch

            about, device = VllmConfig.of(config, vocab_size), torch.device(config.device)
            self._adapters = [make_processor(c, about, device) for c in config.request_processors]

    def of(self, params: SamplingParams) -> tuple[Callable[..., Any], ...]:
        """The functions for one request, in order; InvalidParams if a class refuses it."""
        own = tuple(params.logits_processors or ())
        if not self._classes:
            return own
        for one in self._classes:
            if hasattr(one, "validate_params"):
                _ask(one.__name__, partial(one.validate_params, params))
        made = [
            _ask(type(one).__name__, partial(one.new_req_logits_processor, params))
            for one in self._adapters
        ]
        for processor in made:
            if processor is not None and not callable(processor):
                _refuse("new_req_logits_processor returned what cannot be called", processor)
        return (*own, *(processor for processor in made if processor is not None))


def _ask(name: str, question: Callable[[], Any]) -> Any:
    outcome = attempt(question)
    if isinstance(outcome.error, QuireError):
        raise outcome.error
    if outcome.error is not None:
        raise InvalidParams(
            f"the logits processor {name} refuses these parameters: {outcome.error}",
            parameter="logits_processors",
        ) from outcome.error
    return outcome.made


def _refuse(why: str, value: Any) -> None:
    raise InvalidParams(f"{why}: {value!r}", parameter="logits_processors", value=value)
