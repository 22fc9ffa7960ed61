"""Gathers the results of one call: shows progress, calls callbacks, and gives errors that end the
call early the outputs that had finished."""

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
# (windows, a function to call between steps) -> results.
RunWindows = Callable[[Iterable[Window], Callable[[], None]], Generator[Result, None, None]]


class Call(ABC, Generic[Made]):
    """One call of a method whose results are not RequestOutputs: the requests to run, and how their
    outputs become results."""

    @property
    @abstractmethod
    def num_requests(self) -> int: ...

    @abstractmethod
    def windows(self) -> Iterable[Window]: ...

    @abstractmethod
    def known(self, outputs: Sequence[RequestOutput | None]) -> list[Made | None]:
        """Results of the outputs that are there, at the caller's indices."""

    def keep(self, index: int, output: RequestOutput) -> None:  # noqa: B027 - most need not know
        """Called when an output has finished."""

    def errors(self, outputs: Sequence[RequestOutput]) -> dict[int, QuireError]:
        """Errors by the caller's indices."""
        return {i: one.error for i, one in enumerate(outputs) if one.error is not None}

    def results(self, outputs: Sequence[RequestOutput], *, strict: bool = True) -> list[Made]:
        """The results of all outputs; with `strict`, BatchError if one failed."""
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

    The run is closed before an error leaves this function: code that catches an error of a callback
    or a progress bar may call the LLM again, while the traceback still holds this frame.
    """
    if on_result is not None and not callable(on_result):
        raise InvalidOption(
            f"on_result is a function (index, output), not a {type(on_result).__name__}",
            parameter="on_result",
        )
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
    """Run a call and return its results; with `strict`, BatchError if one failed."""
    every: dict[str, Any] = {"use_tqdm": use_tqdm, "on_error": "return", "on_result": call.keep}
    try:
        outputs = gather(run, call.windows(), call.num_requests, **every)
    except (Interrupted, EngineError) as error:
        error.outputs = call.known(error.outputs)
        raise
    return call.results(outputs, strict=strict)


def raises(on_error: str) -> bool:
    """Whether a call raises if rows fail; InvalidOption for any value but "raise" and "return"."""
    if on_error not in ("raise", "return"):
        raise InvalidOption(
            f'on_error is "raise" or "return", not {on_error!r}',
            parameter="on_error",
            value=on_error,
        )
    return on_error == "raise"


def _in_order(done: dict[int, RequestOutput], total: int | None) -> list[RequestOutput | None]:
    """Each finished output at its prompt's index, None for the others."""
    count = max(done, default=-1) + 1 if total is None else total
    return [done.get(i) for i in range(count)]
