"""Logits processors of single rows: functions of the caller's that see a row's logits first.

Two forms, told apart by how many arguments they take: (output ids, logits) -> logits, and
(prompt ids, output ids, logits) -> logits. They get the model's logits, float32 [vocabulary],
to change or to replace; grammars, penalties and the rest come afterwards. They run in lanes, so
that one that is slow, fails or never returns costs its own rows alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from quire.errors import ProcessorFailed
from quire.params.rules import MAX_BIAS
from quire.safe_text import shown
from quire.sampling.batch_interface import wants_prompt
from quire.sampling.call_threads import Call, CallThreads, GivenUp
from quire.step import RowStart

Processor = Callable[..., Any]

# Of a wish over other logits: twice that has steps of 1/1024 in float32, in which no noise is lost.
_FAR_ABOVE = 4096.0


class RowProcessors:
    """The processors of one row, and the tokens they are told about."""

    def __init__(self, start: RowStart, processors: tuple[Processor, ...]) -> None:
        self._processors = processors
        self._wants_prompt = [wants_prompt(p) for p in processors]
        self._prompt_ids: list[int] = start.prompt_ids.tolist()
        self._output_ids: list[int] = start.output_ids.tolist()
        self._lane = tuple(_key(p) for p in processors)

    def begin(self, logits: Tensor, lanes: CallThreads) -> Call[Tensor]:
        """Start them on one line of logits, which stays as it is. [vocabulary]"""
        # Outside of inference mode, or the processors could not write into it.
        with torch.inference_mode(False), torch.no_grad():
            line = logits.to(torch.float32, copy=True)
        stream = torch.cuda.current_stream(line.device) if line.is_cuda else None
        return lanes.submit(self._lane, lambda: self._run_beside(line, stream))

    def append(self, token_id: int) -> None:
        self._output_ids.append(token_id)

    def failure(self, error: BaseException) -> ProcessorFailed:
        """What the row ends with."""
        if isinstance(error, ProcessorFailed):
            return error
        names = ", ".join(_name(p) for p in self._processors)
        if isinstance(error, GivenUp):
            return ProcessorFailed(f"logits processor {names}: {error}; it was given up.")
        return ProcessorFailed(f"logits processor {names}: {what_it_said(error)}")

    def _run_beside(self, logits: Tensor, stream: torch.cuda.Stream | None) -> Tensor:
        """On the stream that made the logits: it holds no later pass that would be waited for."""
        if stream is None:
            return self._run(logits)
        with torch.cuda.stream(stream):
            made = self._run(logits)
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record(stream)
        done.synchronize()
        return made

    def _run(self, logits: Tensor) -> Tensor:
        with torch.no_grad():
            for processor, wants_prompt in zip(self._processors, self._wants_prompt, strict=True):
                logits = self._call(processor, wants_prompt, logits)
        return logits

    def _call(self, processor: Processor, wants_prompt: bool, logits: Tensor) -> Tensor:
        told = (self._prompt_ids, self._output_ids) if wants_prompt else (self._output_ids,)
        at = f"logits processor {_name(processor)}, at token {len(self._output_ids)} of the answer"
        try:
            given = processor(*told, logits)
        except Exception as error:
            raise ProcessorFailed(f"{at}: {what_it_said(error)}") from error
        return checked_logits(given, logits, at)


def checked_logits(given: Any, logits: Tensor, at: str) -> Tensor:
    """What a processor returned, if it can stand for `logits` [..., vocabulary], all finite or
    -inf."""
    if not isinstance(given, Tensor):
        raise ProcessorFailed(
            f"{at}: it returned {type(given).__name__}, not a tensor; return the logits"
        )
    if given.shape != logits.shape:
        raise ProcessorFailed(
            f"{at}: it returned a tensor of shape {list(given.shape)}; the logits it got have "
            f"{list(logits.shape)}"
        )
    edited = given.detach().to(logits.device, torch.float32)
    largest = float(edited.amax())  # NaN if one of them is
    if math.isnan(largest):
        raise ProcessorFailed(f"{at}: it returned NaN")
    return edited if largest <= 2 * _FAR_ABOVE else _within_reach_of_noise(edited)


def _within_reach_of_noise(logits: Tensor) -> Tensor:
    """Each line with wishes of a size that float32 can add noise to: what is drawn among several
    tokens at +inf, or at 1e9, would else be the first of them.

    +inf lies further above every other than noise, a bias over HTTP and a temperature of 2 can
    bridge. Not -inf for the others: they are what is left where a mask forbids the wish.
    """
    is_wish = logits == torch.inf
    others = logits.masked_fill(is_wish, -torch.inf).clamp(max=MAX_BIAS)
    largest = others.amax(-1, keepdim=True).clamp(min=0)
    # In proportion where that is more: next to 1e9 a float32 knows no step of 4,096.
    wish = largest + torch.maximum(largest / 1024, torch.full_like(largest, _FAR_ABOVE))
    others = torch.where(is_wish, wish, others)
    return others - (others.amax(-1, keepdim=True) - 2 * _FAR_ABOVE).clamp(min=0)


def what_it_said(error: BaseException | None) -> str:
    """It may have to go to another process, which takes no halves of characters."""
    words = shown(str(error)[:300])
    return f"it raised {type(error).__name__}" + (f": {words}" if words else "")


def _name(processor: Processor) -> str:
    """The name its author gave it: a function's, else its class's."""
    named = getattr(processor, "__qualname__", None) or type(processor).__qualname__
    return shown(str(named))


def _key(processor: Processor) -> Hashable:
    """The same for the same processor; two bound methods of one object are equal, not one."""
    return processor if isinstance(processor, Hashable) else id(processor)
