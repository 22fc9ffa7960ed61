"""Logits processors of single rows: functions of the caller that get a row's logits first.

There are two forms, told apart by the number of arguments: (output ids, logits) -> logits, and
(prompt ids, output ids, logits) -> logits. They get the model's logits, float32 [vocabulary],
to change or to replace; grammars, penalties and the rest come afterwards. They run in lanes, so
that a slow, failing or endless processor affects only its own rows.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from quire.errors import ProcessorFailed
from quire.params.rules import MAX_BIAS
from quire.safe_text import shown
from quire.sampling.batch_interface import wants_prompt
from quire.sampling.call_threads import Call, CallThreads, GivenUp
from quire.step import RowStart

Processor = Callable[..., Any]

# How far +inf is put above other logits. Twice this has steps of 1/1024 in float32: noise survives.
_FAR_ABOVE = 4096.0
_IS_NAN = "it returned NaN"


class RowProcessors:
    """The processors of one row, and the token ids that are passed to them."""

    def __init__(self, start: RowStart, processors: tuple[Processor, ...]) -> None:
        self._processors = processors
        self._wants_prompt = [wants_prompt(p) for p in processors]
        self._names = [_name(p) for p in processors]
        self._prompt_ids: list[int] = start.prompt_ids.tolist()
        self._output_ids: list[int] = start.output_ids.tolist()
        self._lane = tuple(_key(p) for p in processors)

    def begin(
        self, logits: Tensor, lanes: CallThreads, stream: torch.cuda.Stream | None = None
    ) -> Call[Tensor]:
        """Start the processors on a copy of one line of logits. [vocabulary]

        On a GPU they launch their work on `stream`, which must be the stream that reads the
        result: nothing else waits for it."""
        # Outside of inference mode, or the processors could not write into it.
        with torch.inference_mode(False), torch.no_grad():
            line = logits.to(torch.float32, copy=True)
        return lanes.submit(self._lane, lambda: self._run(line, stream))

    def append(self, token_id: int) -> None:
        self._output_ids.append(token_id)

    def failure(self, error: BaseException) -> ProcessorFailed:
        """The error that the row ends with."""
        if isinstance(error, ProcessorFailed):
            return error
        names = ", ".join(self._names)
        if isinstance(error, GivenUp):
            return ProcessorFailed(f"logits processor {names}: {error}; it was given up.")
        return ProcessorFailed(f"logits processor {names}: {what_it_said(error)}")

    def made_nan(self) -> ProcessorFailed:
        """The error that the row ends with if the last processor returned NaN."""
        return ProcessorFailed(f"{self._at(-1)}: {_IS_NAN}")

    def _run(self, logits: Tensor, stream: torch.cuda.Stream | None) -> Tensor:
        """The result of the last processor, whose numbers are not checked yet."""
        if stream is not None:
            torch.cuda.set_stream(stream)
        last = len(self._processors) - 1
        with torch.no_grad():
            for i in range(last):
                logits = checked_numbers(self._call(i, logits), self._at(i))
            return self._call(last, logits)

    def _call(self, i: int, logits: Tensor) -> Tensor:
        ids = [self._prompt_ids, self._output_ids] if self._wants_prompt[i] else [self._output_ids]
        try:
            given = self._processors[i](*ids, logits)
        except Exception as error:
            raise ProcessorFailed(f"{self._at(i)}: {what_it_said(error)}") from error
        made = shaped_as(logits, given, self._at(i))
        # A copy, unless it is the tensor it was given: it may write to its result for other rows.
        return made if given is logits else made.clone()

    def _at(self, i: int) -> str:
        return f"logits processor {self._names[i]}, at token {len(self._output_ids)} of the answer"


def settle(
    rows: Sequence[RowProcessors], calls: Sequence[Call[Tensor]]
) -> tuple[list[int], Tensor | None, dict[int, ProcessorFailed]]:
    """The results of calls that are done, one per row: indices of those that returned logits, these
    logits [calls, vocabulary], and the errors of the others."""
    outcomes = [call.outcome() for call in calls]
    made = {i: one.made for i, one in enumerate(outcomes) if one.made is not None}
    failed = {
        i: rows[i].failure(one.error or ValueError("it made nothing"))
        for i, one in enumerate(outcomes)
        if i not in made
    }
    if not made:
        return [], None, failed
    lines, is_nan = _drawable(torch.stack(list(made.values())))
    if is_nan.any():
        failed |= {i: rows[i].made_nan() for i, bad in zip(made, is_nan, strict=True) if bad}
        lines = lines[torch.from_numpy(~is_nan).to(lines.device)]
    return [i for i in made if i not in failed], lines, failed


def shaped_as(logits: Tensor, given: Any, at: str) -> Tensor:
    """What a processor returned for these logits, checked, as float32 on their device."""
    if not isinstance(given, Tensor):
        raise ProcessorFailed(
            f"{at}: it returned {type(given).__name__}, not a tensor; return the logits"
        )
    if given.shape != logits.shape:
        raise ProcessorFailed(
            f"{at}: it returned a tensor of shape {list(given.shape)}; the logits it got have "
            f"{list(logits.shape)}"
        )
    return given.detach().to(logits.device, torch.float32)


def checked_numbers(logits: Tensor, at: str) -> Tensor:
    """The logits, if every number can be drawn from: finite or -inf. Waits for the device."""
    drawable, is_nan = _drawable(logits)
    if is_nan.any():
        raise ProcessorFailed(f"{at}: {_IS_NAN}")
    return drawable


def _drawable(logits: Tensor) -> tuple[Tensor, npt.NDArray[np.bool_]]:
    """The logits in a form to draw from, and which lines have NaN. Waits for the device."""
    largest = logits.amax(-1).cpu().numpy()  # NaN if one of them is
    is_near = largest.max(initial=-np.inf, where=~np.isnan(largest)) <= 2 * _FAR_ABOVE
    return logits if is_near else _within_reach_of_noise(logits), np.isnan(largest)


def _within_reach_of_noise(logits: Tensor) -> Tensor:
    """Each line with its largest logits limited, so that float32 can still add noise to them.
    Otherwise a draw among several tokens at +inf, or at 1e9, would always give the first.

    +inf is put further above all other logits than noise, a bias over HTTP and a temperature of 2
    can bridge. The other logits are kept, because a mask may forbid the tokens at +inf.
    """
    is_wish = logits == torch.inf
    others = logits.masked_fill(is_wish, -torch.inf).clamp(max=MAX_BIAS)
    largest = others.amax(-1, keepdim=True).clamp(min=0)
    # Beside large logits the distance grows with them: float32 has no step of 4,096 at 1e9.
    wish = largest + torch.maximum(largest / 1024, torch.full_like(largest, _FAR_ABOVE))
    others = torch.where(is_wish, wish, others)
    return others - (others.amax(-1, keepdim=True) - 2 * _FAR_ABOVE).clamp(min=0)


def what_it_said(error: BaseException | None) -> str:
    """The error in words, safe to send to another process: without lone surrogates."""
    words = shown(str(error)[:300])
    return f"it raised {type(error).__name__}" + (f": {words}" if words else "")


def _name(processor: Processor) -> str:
    """The name of a function, or of the class of a callable object."""
    named = getattr(processor, "__qualname__", None) or type(processor).__qualname__
    return shown(str(named))


def _key(processor: Processor) -> Hashable:
    """A key of a processor; bound methods of one object are equal even if not identical."""
    return processor if isinstance(processor, Hashable) else id(processor)
