"""Flags of the verbs that run jobs, made from where the options are declared (jobs/run_options)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from quire.jobs.run_options import Flag, flags

Verb = TypeVar("Verb", bound=Callable[..., None])

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]


def _parameter(name: str, flag: Flag) -> inspect.Parameter:
    if flag.is_argument:
        written: Any = typer.Argument(help=flag.help, metavar=f"{name.upper()}...")
    else:
        written = typer.Option(*flag.names, help=flag.help)
    or_none: Any = flag.type | None
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[or_none, written],
    )


def takes(*names: str) -> Callable[[Verb], Verb]:
    """For a verb with `**given`: the flags of these options, or of all; what was not written is
    None. The verb's own parameters come after them in its help."""

    def made(verb: Verb) -> Verb:
        wanted = [_parameter(name, flag) for name, flag in flags() if not names or name in names]
        hints = get_type_hints(verb, include_extras=True)
        own = [
            each.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name])
            for name, each in inspect.signature(verb).parameters.items()
            if each.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        verb.__signature__ = inspect.Signature([*wanted, *own])  # type: ignore[attr-defined]
        verb.__annotations__ = {each.name: each.annotation for each in [*wanted, *own]}
        return verb

    return made
