"""A causal model in two halves: the body makes hidden states, the rest makes logits of them.

The engine computes hidden states of many tokens but logits of few. The dry pass shows where a class
divides: the body is the outermost part that takes the token ids and returns hidden states. For
logits the whole class is called with a body that returns given hidden states, so that every factor,
softcap and bias after the body is the class's own.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from quire.errors import UnsupportedModel

IDS, POSITIONS, CACHE = "ids", "positions", "cache"
MASK = "attention_mask"  # the same name in every class


@dataclass(frozen=True, slots=True)
class BodyCall:
    """How a class calls its body: the name of the body in it, and the arguments."""

    path: str
    constants: tuple[tuple[str, Any], ...]
    roles: tuple[tuple[str, str], ...]  # which arguments are ids, positions and cache
    output: type[Any] | None  # the class that the body returns; None: a tuple
    parts: int  # how many the tuple has
    hidden_size: int
    position_tables: tuple[str, ...]  # embeddings of positions that the body reads

    @property
    def takes_positions(self) -> bool:
        return any(role == POSITIONS for _, role in self.roles)


class Body:
    """The two halves of a model."""

    def __init__(self, model: nn.Module, call: BodyCall) -> None:
        self.model, self.call = model, call
        self.part = model.get_submodule(call.path)

    def hidden(
        self, ids: Tensor, positions: Tensor | None, cache: Any, mask: Tensor | None = None
    ) -> Tensor:
        """ids [B, T] -> [B, T, H]; `mask` [B, L] is 0 at padding, of the past and of new tokens."""
        values = {IDS: ids, POSITIONS: positions, CACHE: cache}
        given = dict(self.call.constants) | {name: values[role] for name, role in self.call.roles}
        if cache is not None:
            given["use_cache"] = True
        if mask is not None:
            given[MASK] = mask
        made: Tensor = self.part(**given)[0]
        return made

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, H] -> [R, V]"""
        known = hidden[None]
        others = (None,) * (self.call.parts - 1)
        answer = (known, *others) if self.call.output is None else self.call.output(known)
        ids = torch.zeros(1, hidden.shape[0], dtype=torch.int64, device=hidden.device)
        with _answering(self.part, answer):
            return plain_logits(self.model, ids)[0]

    @staticmethod
    def watch(
        model: nn.Module, ids: Tensor, positions: Tensor | None = None, cache: Any = None
    ) -> tuple[BodyCall, Tensor]:
        """Call the whole class and record how it calls its body. Returns that and the logits."""
        seen: list[tuple[nn.Module, tuple[Any, ...], dict[str, Any], Any]] = []
        names = {module: path for path, module in model.named_modules() if path}
        handles = [
            part.register_forward_hook(
                lambda part, args, kwargs, made: seen.append((part, args, kwargs, made)),
                with_kwargs=True,
            )
            for part in names
        ]
        given = {} if cache is None else {_cache_name(model): cache, "use_cache": True}
        if positions is not None and _takes(model, "position_ids"):
            given["position_ids"] = positions
        try:
            logits = plain_logits(model, ids, **given)
        finally:
            for handle in handles:
                handle.remove()
        named = ((ids, IDS), (positions, POSITIONS), (cache, CACHE))
        roles = {id(value): role for value, role in named if value is not None}
        # A part ends after all parts inside it, so the last one with the ids is the outermost.
        for part, args, kwargs, made in reversed(seen):
            call = _body_call(names[part], part, args, kwargs, made, roles)
            if call is not None:
                tables = (names[one] for one, *_ in seen if isinstance(one, nn.Embedding))
                positions_of = (n for n in tables if "position" in n.rpartition(".")[2])
                return replace(call, position_tables=tuple(positions_of)), logits
        what = "token ids" if cache is None else "token ids and a cache"
        raise UnsupportedModel(f"it has no part that makes hidden states of {what}.")


def plain_logits(model: nn.Module, ids: Tensor, **given: Any) -> Tensor:
    """One call of the whole class, without a cache unless one is given: [1, T, V]"""
    if _takes(model, "use_cache"):
        given.setdefault("use_cache", False)
    logits: Tensor = model(input_ids=ids, **given, return_dict=True).logits
    return logits


def _cache_name(model: nn.Module) -> str:
    """The class's argument for the cache. Some classes with states alone have another name."""
    of_states = "cache_params" in inspect.signature(model.forward).parameters
    return "cache_params" if of_states else "past_key_values"


def _takes(model: nn.Module, name: str) -> bool:
    parameters = inspect.signature(model.forward).parameters
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _body_call(
    path: str,
    part: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    made: Any,
    roles: dict[int, str],
) -> BodyCall | None:
    """The call, if all values with a role go in (positions may be missing) and hidden states
    [1, T, H] come out."""
    first = made[0] if isinstance(made, tuple | dict) and len(made) else None
    if not isinstance(first, Tensor) or first.ndim != 3:
        return None
    given = _by_name(part, args, kwargs)
    found = {name: roles[id(value)] for name, value in given.items() if id(value) in roles}
    others = {name: value for name, value in given.items() if name not in found}
    needed = {role for role in roles.values() if role != POSITIONS}
    if not needed <= set(found.values()) or any(
        isinstance(value, Tensor) for value in others.values()
    ):
        return None
    return BodyCall(
        path,
        tuple((k, False if k == "use_cache" else v) for k, v in others.items()),
        tuple(found.items()),
        None if type(made) is tuple else type(made),
        len(made),
        first.shape[-1],
        (),
    )


def _by_name(part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """All arguments of a call by name."""
    signature = inspect.signature(part.forward)
    given = dict(signature.bind(*args, **kwargs).arguments)
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            given |= given.pop(name, {})
    return given


@contextmanager
def _answering(part: nn.Module, answer: Any) -> Iterator[None]:
    """Within this context the part returns `answer`, whatever its arguments are."""
    part.forward = lambda *args, **kwargs: answer
    try:
        yield
    finally:
        del part.forward  # uncovers the class's own method
