"""The results of one call, gathered: progress shown, callbacks called, and whatever ends the call
early handed the outputs that were finished."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from typing import Any, Generic, Literal, TypeVar, cast

from quire.errors import BatchError, EngineError, Interrupted, InvalidOption, QuireError
from quire.outputs import RequestOutput
from quire.run import Result, Window
from quire.session.interrupts import CtrlC
from quire.session.progress import Progress

Made = TypeVar("Made")
OnError = Literal["raise", "return"]
OnResult = Callable[[int, RequestOutput], object]
UseTqdm = bool | Callable[..., Any]
# Windows, and what to call between steps -> results.
RunWindows = Callable[[Iterable[Window], Callable[[], None]], Generator[Result, None, None]]


class Call(ABC, Generic[Made]):
    """One call of a method that makes something else of its outputs than RequestOutputs: what to
    run, and what to make of it."""

    @property
    @abstractmethod
    def num_requests(self) -> int: ...

    @abstractmethod
    def windows(self) -> Iterable[Window]: ...

    @abstractmethod
    def known(self, outputs: Sequence[RequestOutput | None]) -> list[Made | None]:
        """What can be made of those outputs that are there, at the caller's places."""

    def keep(self, index: int, output: RequestOutput) -> None:  # noqa: B027 - most need not know
        """One output is there."""

    def errors(self, outputs: Sequence[RequestOutput]) -> dict[int, QuireError]:
        """What failed, at the caller's places."""
        return {i: one.error for i, one in enumerate(outputs) if one.error is not None}

    def results(self, outputs: Sequence[RequestOutput], *, strict: bool = True) -> list[Made]:
        """What is made of all outputs; `strict`: BatchError if something failed."""
        found, errors = self.known(outputs), self.errors(outputs)
        if errors and strict:
            raise BatchError(found, errors)
        return cast(list[Made], found)


def gather(
    run: RunWindows,
    windows: Iterable[Window],
    total: int | None,
    *,
    use_tqdm: UseTqdm,
    on_error: OnError = "raise",
    on_result: OnResult | None = None,
) -> list[RequestOutput]:
    """One output for each prompt, in order.

    The run is closed before anything leaves here: what a callback or a bar raises may be caught
    by code that calls the LLM again, while its traceback still holds this frame.
    """
    done: dict[int, RequestOutput] = {}
    try:
        with (
            CtrlC() as ctrl_c,
            Progress(use_tqdm, total) as progress,
            closing(run(windows, ctrl_c.check)) as results,
        ):
            for index, output in results:
                done[index] = output
                progress.update(output)
                if on_result is not None:
                    on_result(index, output)
    except KeyboardInterrupt:
        finished = f"{len(done)} of {total if total is not None else 'the'} prompts finished"
        raise Interrupted(f"stopped: {finished}", _in_order(done, total)) from None
    except EngineError as error:
        error.outputs = _in_order(done, total)
        raise
    outputs = [done[i] for i in range(len(done))]
    errors = {i: o.error for i, o in enumerate(outputs) if o.error is not None}
    if errors and on_error == "raise":
        raise BatchError(outputs, errors)
    return outputs


def gather_call(
    run: RunWindows, call: Call[Made], use_tqdm: UseTqdm, *, strict: bool = True
) -> list[Made]:
    """What a call makes of its outputs; `strict`: BatchError if something failed."""
    every: dict[str, Any] = {"use_tqdm": use_tqdm, "on_error": "return", "on_result": call.keep}
    try:
        outputs = gather(run, call.windows(), call.num_requests, **every)
    except (Interrupted, EngineError) as error:
        error.outputs = call.known(error.outputs)
        raise
    return call.results(outputs, strict=strict)


def raises(on_error: str) -> bool:
    """Whether a call raises for rows that fail; InvalidOption for a word that is neither."""
    if on_error not in ("raise", "return"):
        raise InvalidOption(
            f'on_error is "raise" or "return", not {on_error!r}',
            parameter="on_error",
            value=on_error,
        )
    return on_error == "raise"


def _in_order(done: dict[int, RequestOutput], total: int | None) -> list[RequestOutput | None]:
    """Each finished output at its prompt's place, None where there is none yet."""
    count = max(done, default=-1) + 1 if total is None else total
    return [done.get(i) for i in range(count)]
