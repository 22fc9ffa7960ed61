"""Flags of the verbs that run jobs, made from the declared options (jobs/run_options)."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from quire.errors import InvalidOption
from quire.jobs.run_options import SAMPLING_FLAGS, Flag, flags, with_flags

Verb = TypeVar("Verb", bound=Callable[..., None])

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")]
_RANKS = SAMPLING_FLAGS["tensor_parallel_size"]
Ranks = Annotated[int | None, typer.Option(*_RANKS.names, help=_RANKS.help)]
JudgeRanks = Annotated[int | None, typer.Option(help=_RANKS.help)]
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
    """For a verb with `**given`: adds the flags of these options, or of all. A flag that was not
    written is None. The verb's own parameters come after them in its help."""

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


def engine_options(
    written: Sequence[str] | None, flag: str = "option", **own: Any
) -> dict[str, Any]:
    """Engine options from NAME=VALUE flags, and from `own` flags, where None means not set."""
    return with_flags(assignments(written or (), flag), own)


_PYTHON_WORDS = {"True": True, "False": False, "None": None}


def assignments(given: Sequence[str], flag: str) -> dict[str, Any]:
    return dict(_assignment(each, flag) for each in given)


def _assignment(given: str, flag: str) -> tuple[str, Any]:
    """ "top_k=5" -> ("top_k", 5); True, False and None as Python writes them; else text."""
    name, equals, value = given.partition("=")
    if not equals or not name:
        raise InvalidOption(f"--{flag} is NAME=VALUE, not {given!r}", parameter=flag, value=given)
    name = name.strip().replace("-", "_")
    if value in _PYTHON_WORDS:
        return name, _PYTHON_WORDS[value]
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
