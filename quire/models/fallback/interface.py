"""Which functions a Transformers model computes with: names in its configs, changed for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn

_ATTENTION, _EXPERTS = "_attn_implementation_internal", "_experts_implementation_internal"


@contextmanager
def computing(model: nn.Module, *, attention: str, experts: str | None = None) -> Iterator[None]:
    """The model's layers use the attention and, if one is given, the experts of these names.

    Written past the setters of Transformers, which refuse names for classes that do not say they
    take them: whether they do is seen from what they call."""
    configs = {id(c): c for m in model.modules() if (c := getattr(m, "config", None)) is not None}
    with ExitStack() as before:
        for config in configs.values():
            _set(config, _ATTENTION, attention, before)
            if experts is not None:
                _set(config, _EXPERTS, experts, before)
        yield


def _set(config: Any, field: str, name: str, before: ExitStack) -> None:
    if hasattr(config, field):
        before.callback(setattr, config, field, getattr(config, field))
        setattr(config, field, name)
