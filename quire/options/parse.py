"""Keyword arguments -> Options; anything unknown is refused."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import SequenceMatcher
from typing import Any

from quire.base.notes import warn
from quire.errors import InvalidOption, NotSupported, UnknownOption
from quire.options.options import Options
from quire.options.table import OPTIONS
from quire.params.rules import PARAMS_STATUS, show


def parse_options(given: Mapping[str, Any]) -> Options:
    """The honoured options of `given`, checked.

    An unknown name raises UnknownOption with the nearest known one; a refused option raises
    NotSupported and a moot one warns, each only when set to something else than its default.
    """
    honoured: dict[str, Any] = {}
    for name, value in given.items():
        option = OPTIONS.get(name)
        if option is None:
            raise _unknown(name, value)
        if value is None:
            continue
        if option.check is not None:
            value = option.check(name, value)
        if option.kind == "honoured":
            honoured[name] = value
        elif not option.is_default(value):
            if option.kind == "refused":
                raise NotSupported(f"{name}={show(value)} is not built. {option.why}")
            warn(f"{name}={show(value)} has no effect. {option.why}")
    options = Options(**{name: value for name, value in honoured.items() if value is not None})
    _check_processes(options)
    return options


def _check_processes(options: Options) -> None:
    backend = options.distributed_executor_backend
    sizes = {
        "data_parallel_size": options.data_parallel_size,
        "tensor_parallel_size": options.tensor_parallel_size,
    }
    for name, size in sizes.items():
        if size > 1 and backend in ("uni", "external_launcher"):
            raise InvalidOption(
                f"distributed_executor_backend={backend!r} is one process, and {name}={size} needs "
                "as many. Leave one of them out: quire starts its processes itself.",
                parameter="distributed_executor_backend",
                value=backend,
            )


def _unknown(name: str, value: Any) -> UnknownOption:
    def likeness(known: str) -> float:
        # Of two near names, the honoured one is more likely to be meant.
        bonus = 0.1 if OPTIONS[known].kind == "honoured" else 0.0
        return SequenceMatcher(None, wanted, known).ratio() + bonus

    wanted = str(name).replace("-", "_").lower()
    nearest = max(OPTIONS, key=likeness)
    if wanted in PARAMS_STATUS:
        hint = f" It is a parameter of the request: SamplingParams({wanted}=...)."
    elif likeness(nearest) >= 0.6:
        hint = f" Did you mean {nearest!r}?"
    else:
        hint = " docs/api.md lists them all."
    return UnknownOption(f"LLM has no option {show(name)}.{hint}", parameter=str(name), value=value)
