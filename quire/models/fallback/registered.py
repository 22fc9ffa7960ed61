"""Classes that a program registered for architectures. Imports neither torch nor Transformers."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from quire.errors import UnsupportedModel

CLASSES: dict[str, Any] = {}  # a class, or "module:Class", imported when a model asks for it


def registered_class(architecture: str) -> Any | None:
    """The class that was registered for an architecture, imported if need be."""
    found = CLASSES.get(architecture)
    if isinstance(found, str):
        module, _, name = found.partition(":")
        try:
            found = getattr(import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise UnsupportedModel(
                f"{architecture} is registered as {CLASSES[architecture]!r}, which cannot be "
                f"imported: {error}"
            ) from error
    return found
