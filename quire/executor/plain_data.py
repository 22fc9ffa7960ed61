"""Requests, their outputs, specs and configs as plain JSON values, and back, for processes that run
the same code: nothing of it is run.

Only the classes named here can come out. A field that has its default is left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from quire import config, errors, layer_plan, spec
from quire.errors import NotSupported, QuireError
from quire.executor import executor
from quire.logprobs import FlatLogprobs, LazyLogprobs, Logprob, Unread
from quire.outputs import (
    AnswerReading,
    ChoiceChances,
    CompletionOutput,
    ContinuationScore,
    RequestOutput,
    RequestStateStats,
    ToolCall,
)
from quire.params import structured
from quire.ranks import shares
from quire.request import Choices, NamedTokens, Request, ThoughtLimit
from quire.sampling_params import BeamSearchParams, RequestOutputKind, SamplingParams
from quire.weights import source

_MODULES = (config, layer_plan, spec, structured, shares, executor, source)
_CLASSES: dict[str, type[Any]] = {
    each.__name__: each
    for each in (
        *(Request, Choices, SamplingParams, BeamSearchParams, ThoughtLimit, NamedTokens),
        *(AnswerReading, CompletionOutput, RequestStateStats, ToolCall, ContinuationScore),
        *(ChoiceChances, FlatLogprobs),
        *(one for module in _MODULES for one in vars(module).values()),
    )
    if isinstance(each, type) and is_dataclass(each)
}
_OUTPUT = (
    *("request_id", "prompt_logprobs", "outputs", "finished", "metrics", "num_cached_tokens"),
    *("error", "continuation_scores", "_choice_chances", "prompt_token_id_logprobs"),
)
_PLAIN = (bool, int, float, str)


def to_json(value: Any) -> bytes:
    return json.dumps(encode(value)).encode()


def from_json(data: bytes | str) -> Any:
    return decode(json.loads(data))


def encode(value: Any) -> Any:
    """As what json can write; NotSupported for what cannot leave the process."""
    if value is None or type(value) in _PLAIN:
        return value
    if type(value) is list:
        return [encode(each) for each in value]
    if isinstance(value, Unread):
        return encode(value.read())
    if isinstance(value, LazyLogprobs):
        return [encode(each) for each in value]
    tag, inner = _tagged(value)
    return {"$": tag, "v": inner}


def _tagged(value: Any) -> tuple[str, Any]:
    if isinstance(value, tuple):
        return "tuple", [encode(each) for each in value]
    if isinstance(value, set | frozenset):
        return "set", [encode(each) for each in sorted(value)]
    if isinstance(value, dict):
        return "dict", [[encode(key), encode(each)] for key, each in value.items()]
    if isinstance(value, np.ndarray):
        return f"array {value.dtype.name}", value.tolist()
    if isinstance(value, np.generic):
        return "number", value.item()
    if isinstance(value, Logprob):
        return "logprob", [value.logprob, value.rank, value.decoded_token]
    if isinstance(value, RequestOutputKind):
        return "kind", value.value
    if isinstance(value, RequestOutput):
        return "output", {name: encode(getattr(value, name)) for name in _OUTPUT}
    if isinstance(value, QuireError):
        return "error", _error(value)
    if isinstance(value, Path):
        return "path", str(value)
    name = type(value).__name__
    if is_dataclass(value) and _CLASSES.get(name) is type(value):
        return name, _fields(value)
    raise NotSupported(
        f"a {name} cannot go to another process, where data_parallel_size and tensor_parallel_size "
        "run requests: leave it out, or make the LLM with both at 1."
    )


def _fields(value: Any) -> dict[str, Any]:
    found = {}
    for field in fields(value):
        here = getattr(value, field.name)
        is_plain = here is None or type(here) in _PLAIN
        if not (is_plain and type(here) is type(field.default) and here == field.default):
            found[field.name] = encode(here)
    return found


def _error(error: QuireError) -> dict[str, Any]:
    kept = {
        name: value for name, value in vars(error).items() if value is None or type(value) in _PLAIN
    }
    kind = type(error).__name__
    known = getattr(errors, kind, None) is type(error)
    return {"type": kind if known else "RowError", "text": str(error), "more": kept}


def decode(value: Any) -> Any:
    if isinstance(value, list):
        return [decode(each) for each in value]
    if not isinstance(value, dict):
        return value
    tag, inner = value["$"], value["v"]
    if tag in _CLASSES:
        return _made(_CLASSES[tag], inner)
    if tag.startswith("array "):
        return np.array(inner, tag.removeprefix("array "))
    made: dict[str, Callable[[], Any]] = {
        "tuple": lambda: tuple(decode(each) for each in inner),
        "set": lambda: frozenset(decode(each) for each in inner),
        "dict": lambda: {decode(key): decode(each) for key, each in inner},
        "number": lambda: inner,
        "logprob": lambda: Logprob(*inner),
        "kind": lambda: RequestOutputKind(inner),
        "output": lambda: _output(inner),
        "error": lambda: _raised(inner),
        "path": lambda: Path(inner),
    }
    return made[tag]()


def _made(kind: type[Any], given: dict[str, Any]) -> Any:
    """Without its checks: they were made where it came from."""
    made = object.__new__(kind)
    for field in fields(kind):
        if field.name in given:
            object.__setattr__(made, field.name, decode(given[field.name]))
        else:
            object.__setattr__(made, field.name, _default(field))
    return made


def _default(field: Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default


def _output(given: dict[str, Any]) -> RequestOutput:
    found = {name: decode(value) for name, value in given.items()}
    return RequestOutput(
        found["request_id"],
        None,
        None,
        found["prompt_logprobs"],
        found["outputs"],
        found["finished"],
        found["metrics"],
        num_cached_tokens=found["num_cached_tokens"],
        error=found["error"],
        continuation_scores=found["continuation_scores"],
        choice_chances=found["_choice_chances"],
        prompt_token_id_logprobs=found["prompt_token_id_logprobs"],
    )


def _raised(given: dict[str, Any]) -> QuireError:
    kind = getattr(errors, given["type"], errors.RowError)
    made: QuireError = kind.__new__(kind)
    Exception.__init__(made, given["text"])
    made.__dict__.update(given["more"])
    return made
