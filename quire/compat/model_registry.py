"""ModelRegistry: lists architectures that can be run, and registers classes for others."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from quire.errors import InvalidOption
from quire.families.family import Family
from quire.families.registry import BY_ARCHITECTURE, register_family
from quire.models.fallback.registered import CLASSES


class ModelRegistry:
    """Families and Transformers classes by architecture, for this process."""

    @staticmethod
    def register_model(model_arch: str, model_cls: Any) -> None:
        """Run models whose config names `model_arch` as `model_cls`: a Family, a causal class of
        Transformers, or "module:Class", which is imported when a model needs it."""
        if not isinstance(model_arch, str) or not model_arch:
            raise InvalidOption(
                f"an architecture is a name, not {model_arch!r}.",
                parameter="model_arch",
                value=model_arch,
            )
        if isinstance(model_cls, Family):
            register_family(model_arch, model_cls)
        elif _is_class(model_cls):
            CLASSES[model_arch] = model_cls
        else:
            raise InvalidOption(
                "a model is registered as a Family of quire, as a causal class of Transformers "
                f'(a PreTrainedModel), or as "module:Class", not {model_cls!r}.',
                parameter="model_cls",
                value=model_cls,
            )

    @staticmethod
    def get_supported_archs() -> set[str]:
        """Every architecture that can be run: quire's families, registered classes, and the causal
        classes of Transformers, a few of which are refused when a model is loaded."""
        names = {*BY_ARCHITECTURE, *CLASSES}
        if find_spec("transformers") is not None:
            from quire.models.fallback.classes import architectures

            names |= {*architectures()}
        return names


def _is_class(given: Any) -> bool:
    if isinstance(given, str):
        module, colon, name = given.partition(":")
        return bool(module and colon and name.isidentifier())
    # Compared by name, because Transformers may not be imported.
    return isinstance(given, type) and any(
        base.__name__ == "PreTrainedModel" for base in given.__mro__
    )
