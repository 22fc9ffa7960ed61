"""Uses torch's own defaults while quire computes, whatever a script has set.

`torch.set_default_dtype` and `torch.set_default_device` change what torch.empty(8) makes, to whose
address kernels in C write; `torch.autocast` changes the dtype of products. The default dtype is the
same for all threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import wraps
from typing import Any, TypeVar

import torch

from quire.base.shared_setting import SharedSetting

_USUAL = torch.float32
# Public methods, which scripts with other defaults may call.
_PUBLIC = ("start", "submit", "result", "reset", "close", "sleep", "wake_up", "load_weights")

Kind = TypeVar("Kind", bound=type)
Work = TypeVar("Work", bound=Callable[..., Any])


def _use_usual_dtype() -> Callable[[], None]:
    before = torch.get_default_dtype()
    if before != _USUAL:
        torch.set_default_dtype(_USUAL)
    return lambda: None if before == _USUAL else torch.set_default_dtype(before)


_USUAL_DTYPE = SharedSetting(_use_usual_dtype)


def _changed() -> Iterator[AbstractContextManager[object]]:
    """Contexts that undo what the calling thread has changed, and no others: setting a device makes
    every call of torch slower."""
    if torch.empty(0).device.type != "cpu":
        yield torch.device("cpu")
    for kind in ("cpu", "cuda"):
        if torch.is_autocast_enabled(kind):
            yield torch.autocast(kind, enabled=False)


def by_usual_defaults(work: Work) -> Work:
    """The function, run with torch's own defaults."""

    @wraps(work)
    def done(*given: Any, **named: Any) -> Any:
        with ExitStack() as usual:
            usual.enter_context(_USUAL_DTYPE)
            for one in _changed():
                usual.enter_context(one)
            return work(*given, **named)

    return done  # type: ignore[return-value]  # it has the signature of `work`


def computes_by_usual_defaults(kind: Kind) -> Kind:
    """The class, with its public methods run with torch's own defaults."""
    for name in _PUBLIC:
        if name in vars(kind):
            setattr(kind, name, by_usual_defaults(vars(kind)[name]))
    return kind
