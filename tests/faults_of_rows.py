"""Faults of quire's own, put where something is made for one row alone: a prompt with the words
"fault at PLACE" or "panic at PLACE" meets one there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quire.request import Request
from quire.results.finished import Results
from quire.results.text_watch import StopWatch
from quire.session.intake import Intake

PLACES = ("reading", "beginning", "following", "growing", "ending")


class PanicException(BaseException):  # noqa: N818 - the name under which Rust's panics come
    pass


def fail(place: str, prompt: Any) -> None:
    if f"fault at {place}" in str(prompt):
        raise LookupError("made up")
    if f"panic at {place}" in str(prompt):
        raise PanicException("made up")


def put_faults(patch: Callable[[Any, str, Any], None] = setattr) -> None:
    """`patch` sets an attribute of a class."""
    read, watch = Intake.read_watched, Results.watch
    partial, output = Results.partial, Results.output

    def read_watched(self: Intake, prompt: Any, *rest: Any, **more: Any) -> Any:
        fail("reading", prompt)
        return read(self, prompt, *rest, **more)

    def begin(self: Results, request: Request) -> StopWatch | None:
        fail("beginning", request.prompt)
        made = watch(self, request)
        if "at following" in str(request.prompt) and self._tokenizer is not None:
            made = made or StopWatch(self._tokenizer, request)
            made.follow = lambda token_ids: fail("following", request.prompt)  # type: ignore[method-assign]
        return made

    def grow(self: Results, request: Request, *rest: Any) -> Any:
        fail("growing", request.prompt)
        return partial(self, request, *rest)

    def end(self: Results, request: Request, *rest: Any) -> Any:
        fail("ending", request.prompt)
        return output(self, request, *rest)

    patch(Intake, "read_watched", read_watched)
    for name, made in (("watch", begin), ("partial", grow), ("output", end)):
        patch(Results, name, made)
