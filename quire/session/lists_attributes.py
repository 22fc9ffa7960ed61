"""Views of the engine whose AttributeError lists the attributes they have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any


class ListsAttributes:
    """Scripts read parts of vLLM's engine by name; the error for a missing one lists those that
    exist."""

    __slots__ = ()

    if not TYPE_CHECKING:  # otherwise type checkers would accept every name

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(name)
            if hasattr(type(self), name):  # a property that raised: raise its own error again
                return object.__getattribute__(self, name)
            known = ", ".join(one for one in dir(self) if not one.startswith("_"))
            raise AttributeError(
                f"{type(self).__name__} has no {name!r} for programs written for vLLM. It has "
                f"{known}."
            )
