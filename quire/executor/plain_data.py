"""Requests, outputs, specs and configs as plain JSON values, and back, for processes that run the
same code. Reading never runs code from the data.

Only the classes named here can be read. Fields with their default value are left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from quire import config, errors, layer_plan, spec
from quire.errors import NotSupported, QuireError
from quire.executor import executor
from quire.layer_parts import embeddings, norm, rope, state, streams
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

_PARTS = (embeddings, norm, rope, state, streams)
_MODULES = (config, layer_plan, *_PARTS, spec, structured, shares, executor, source)
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
    """As values that json can write. NotSupported for values that cannot leave the process."""
    if value is None or type(value) in _PLAIN:
        return value
    if type(value) is list:
        return [encode(each) for each in value]
    if isinstance(value, Unread):
        return encode(value.read())
    if isinstance(value, LazyLogprobs):
        return [encode(each) for each in value]
    for tag, (kinds, write, _) in _KINDS.items():
        if isinstance(value, kinds):
            return {"$": tag, "v": write(value)}
    name = type(value).__name__
    if is_dataclass(value) and _CLASSES.get(name) is type(value):
        return {"$": name, "v": _fields(value)}
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
    return _made(_CLASSES[tag], inner) if tag in _CLASSES else _KINDS[tag][2](inner)


def _made(kind: type[Any], given: dict[str, Any]) -> Any:
    """Made without the checks of its class: the sender made them."""
    if issubclass(kind, msgspec.Struct):
        return kind(**{name: decode(each) for name, each in given.items()})
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
    found = {name.removeprefix("_"): decode(value) for name, value in given.items()}
    return RequestOutput(prompt=None, prompt_token_ids=None, **found)


def _raised(given: dict[str, Any]) -> QuireError:
    kind = getattr(errors, given["type"], errors.RowError)
    made: QuireError = kind.__new__(kind)
    Exception.__init__(made, given["text"])
    made.__dict__.update(given["more"])
    return made


# By tag: the classes, their writer and their reader.
_KINDS: dict[str, tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "tuple": (
        tuple,
        lambda some: [encode(each) for each in some],
        lambda some: tuple(decode(some)),
    ),
    "set": (
        (set, frozenset),
        lambda some: [encode(each) for each in sorted(some)],
        lambda some: frozenset(decode(some)),
    ),
    "dict": (
        dict,
        lambda some: [[encode(key), encode(each)] for key, each in some.items()],
        lambda some: {decode(key): decode(each) for key, each in some},
    ),
    "array": (
        np.ndarray,
        lambda array: [array.dtype.name, array.tolist()],
        lambda written: np.array(written[1], written[0]),
    ),
    "number": (np.generic, lambda number: number.item(), lambda number: number),
    "logprob": (
        Logprob,
        lambda one: [one.logprob, one.rank, one.decoded_token],
        lambda written: Logprob(*written),
    ),
    "kind": (RequestOutputKind, lambda kind: kind.value, RequestOutputKind),
    "output": (
        RequestOutput,
        lambda output: {name: encode(getattr(output, name)) for name in _OUTPUT},
        _output,
    ),
    "error": (QuireError, _error, _raised),
    "path": (Path, str, Path),
}
