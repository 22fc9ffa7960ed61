"""Names that scripts import and that are not built: each says so, and the way out, when used."""

from __future__ import annotations

from typing import Any, NoReturn

from quire.errors import NotSupported

_WEIGHTS = (
    "Sending weights to other processes ({}) is not built. Train beside the LLM (colocate): "
    "load_weights takes named tensors (docs/clients.md)."
)


class _Refusing(type):
    """Importing and naming such a class is fine; making one, or asking it for anything, is not."""

    def __call__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotSupported(_WEIGHTS.format(cls.__name__))

    def __getattr__(cls, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotSupported(_WEIGHTS.format(f"{cls.__name__}.{name}"))


class WeightTransfer(metaclass=_Refusing):
    """Weights sent to ranks, by NCCL or by handles of memory; what sends them, and what is sent."""


def get_world_group(*args: Any, **kwargs: Any) -> NoReturn:
    """The ranks of all engines, among which weights are sent."""
    raise NotSupported(_WEIGHTS.format("get_world_group"))


class Worker:
    """What trainers change while they make an LLM, so that memory of their own is no error."""

    def _assert_memory_footprint_increased_during_profiling(self) -> None:
        """Nothing: what others have of a GPU does not count here."""


def initialize_ray_cluster(*args: Any, **kwargs: Any) -> NoReturn:
    """Many machines behind one LLM."""
    raise NotSupported("Ray clusters are not built. Run one LLM per machine on its own prompts.")
