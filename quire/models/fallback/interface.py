"""Chooses the attention and experts that a Transformers model calls, by names in its configs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn

_ATTENTION, _EXPERTS = "_attn_implementation_internal", "_experts_implementation_internal"


def configs_of(model: nn.Module) -> tuple[Any, ...]:
    """Every config that a part of the model reads."""
    found = (getattr(part, "config", None) for part in model.modules())
    return tuple({id(config): config for config in found if config is not None}.values())


def own_attention(configs: tuple[Any, ...]) -> str:
    """The name of Transformers' own attention to compare with. "eager" has every softcap and sink.
    But where alibi is set in the config it would add alibi to scores whose mask has it already."""
    twice = any(getattr(config, "alibi", False) for config in configs)
    return "sdpa" if twice else "eager"


@contextmanager
def computing(
    configs: tuple[Any, ...], *, attention: str, experts: str | None = None
) -> Iterator[None]:
    """Within this context layers with these configs use the named attention and, if given, experts.

    It writes past the setters of Transformers, which refuse names for classes that do not declare
    support: whether they do is seen from what they call."""
    with ExitStack() as before:
        for config in configs:
            _set(config, _ATTENTION, attention, before)
            if experts is not None:
                _set(config, _EXPERTS, experts, before)
        yield


def _set(config: Any, field: str, name: str, before: ExitStack) -> None:
    if hasattr(config, field):
        before.callback(setattr, config, field, getattr(config, field))
        setattr(config, field, name)
