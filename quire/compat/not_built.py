"""Names that scripts import and that are not built: each says so, and the way out, when used."""

from __future__ import annotations

from typing import Any, NoReturn

from quire.errors import NotSupported
from quire.families.registry import BY_ARCHITECTURE


class _NotBuilt:
    """Importing and naming it is fine; making one, or asking it for anything, is not."""

    way_out = ""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._refuse()

    @classmethod
    def _refuse(cls) -> NoReturn:
        raise NotSupported(f"{cls.__name__} is not built. {cls.way_out}")

    @classmethod
    def from_engine_args(cls, *args: Any, **kwargs: Any) -> NoReturn:
        cls._refuse()


class LLMEngine(_NotBuilt):
    """A synchronous engine that is stepped by hand."""

    way_out = "Use LLM.stream(prompts, params, tokens=True), or AsyncLLM."


class ModelRegistry:
    """Model classes by architecture; quire knows its families and takes no others yet."""

    @staticmethod
    def register_model(model_arch: str, model_cls: Any) -> NoReturn:
        raise NotSupported(
            f"ModelRegistry.register_model({model_arch!r}) is not built. "
            f"Load a model of one that quire has: {', '.join(BY_ARCHITECTURE)}."
        )

    @staticmethod
    def get_supported_archs() -> NoReturn:
        raise NotSupported(
            "ModelRegistry.get_supported_archs is not built. "
            f"quire has {', '.join(BY_ARCHITECTURE)}."
        )


def initialize_ray_cluster(*args: Any, **kwargs: Any) -> NoReturn:
    """Many machines behind one LLM."""
    raise NotSupported("Ray clusters are not built. Run one LLM per machine on its own prompts.")
