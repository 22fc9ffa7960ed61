"""The adapters that were loaded while the server runs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Loaded:
    """The directory of an adapter, and the id of the key that loaded it."""

    path: str
    key_id: str


class RuntimeAdapters:
    """The adapters that were loaded, by name."""

    def __init__(self) -> None:
        self.loaded: Mapping[str, Loaded] = {}
        self.changing = asyncio.Lock()  # adapters are loaded and unloaded one at a time

    def put(self, name: str, one: Loaded) -> None:
        self.loaded = {**self.loaded, name: one}

    def drop(self, name: str) -> None:
        self.loaded = {other: one for other, one in self.loaded.items() if other != name}

    def paths(self) -> dict[str, str]:
        return {name: one.path for name, one in self.loaded.items()}
