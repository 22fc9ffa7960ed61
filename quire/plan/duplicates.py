"""Requests that must give the same answer, so that only one of them has to run.

These have equal prompts, equal parameters, and an answer that does not depend on chance: greedy, or
drawn with the same given seed. Unseeded samples are never merged: equal prompts should differ.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import fields, is_dataclass

from quire.request import Ints, Request
from quire.sampling_params import SamplingParams


def find_duplicates(requests: Sequence[Request], first_equal: Ints) -> dict[int, int]:
    """For each request that repeats an earlier one, the index of the first equal request.

    `first_equal` names, for every request, the first with the same prompt.
    """
    repeated = set(first_equal[first_equal != range(len(requests))].tolist())
    if not repeated:
        return {}
    parameters: dict[int, Hashable] = {}  # by identity: one object may serve 10,000 prompts
    seen: dict[Hashable, int] = {}
    duplicates: dict[int, int] = {}
    for index, (request, prompt) in enumerate(zip(requests, first_equal.tolist(), strict=True)):
        params = request.params
        scored = request.continuations and request.choices is None
        if prompt not in repeated or scored or not _is_repeatable(params):
            continue
        if id(params) not in parameters:
            parameters[id(params)] = _parameters_key(params)
        key = (
            prompt,
            parameters[id(params)],
            request.max_tokens,
            request.eos_ids,
            request.stop_ids,
            request.priority,
            request.watched,
            _frozen(request.search),
            request.hidden,
            request.hidden_from,
            0 if params.temperature == 0 else request.noise_key,
        )
        first = seen.setdefault(key, index)
        if first != index:
            duplicates[index] = first
    return duplicates


def _is_repeatable(params: SamplingParams) -> bool:
    # A processor may keep a state between calls, so its answers may differ.
    if params.logits_processors:
        return False
    return params.temperature == 0 or params.seed is not None


def _parameters_key(params: SamplingParams) -> Hashable:
    """A key of every field; the seed is left out for greedy answers."""
    names = [f.name for f in fields(params) if f.name != "seed" or params.temperature != 0]
    return tuple(_frozen(getattr(params, name)) for name in names)


def _frozen(value: object) -> Hashable:
    """The value in a form that can be a key; an object that cannot be compared is only itself."""
    if isinstance(value, dict):
        return frozenset((k, _frozen(v)) for k, v in value.items())
    if isinstance(value, list | tuple):
        return tuple(_frozen(v) for v in value)
    if is_dataclass(value) and not isinstance(value, type):
        parts = (_frozen(getattr(value, f.name)) for f in fields(value))
        return (type(value), *parts)
    return value if isinstance(value, Hashable) else id(value)
