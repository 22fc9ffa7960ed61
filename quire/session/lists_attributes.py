"""Views of the engine whose AttributeError lists what they do have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any


class ListsAttributes:
    """Scripts look for parts of vLLM's engine by name; one that is missing here raises an error
    that lists those that are there."""

    __slots__ = ()

    if not TYPE_CHECKING:  # or every name would be taken for one that is there

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(name)
            if hasattr(type(self), name):  # a property that raised: say again what it said
                return object.__getattribute__(self, name)
            known = ", ".join(one for one in dir(self) if not one.startswith("_"))
            raise AttributeError(
                f"{type(self).__name__} has no {name!r} for programs written for vLLM. It has "
                f"{known}."
            )
