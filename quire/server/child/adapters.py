"""The adapters that rows name as their model: those of the start, and those loaded since."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING

from quire.errors import InvalidRequest, NotSupported
from quire.params.lora import LoRARequest
from quire.params.rules import show

if TYPE_CHECKING:
    from quire.session.session import Session


class ServedAdapters:
    """By name. Rows may name nothing else but the model itself, by one of its `names`."""

    def __init__(
        self,
        session: Session,
        names: Sequence[str],
        lora: Mapping[str, str],
        loaded: Mapping[str, str],
    ) -> None:
        """`lora` of the start are checked now; those `loaded` since were, and what became of one
        is the matter of those who ask for it."""
        self._session, self._names, self._numbers = session, frozenset(names), count(1)
        self._requests: Mapping[str, LoRARequest] = {}
        for name, path in lora.items():
            self.load(name, path)
        for name, path in loaded.items():
            self._put(name, path)

    def load(self, name: str, path: str) -> None:
        """Rows may name it from now on; InvalidAdapter if it is none for the model."""
        store = self._session.model.adapters
        if store is None:
            raise NotSupported("this engine was made without adapters (enable_lora=True)")
        store.check(LoRARequest(name, 1, path))
        self._put(name, path)

    def _put(self, name: str, path: str) -> None:
        made = LoRARequest(name, next(self._numbers), path)
        self._requests = {**self._requests, name: made}

    def unload(self, name: str) -> None:
        """Rows that come from now on may not name it; others keep it."""
        self._requests = {k: v for k, v in self._requests.items() if k != name}

    def find(self, model: str) -> LoRARequest | None:
        return self._requests.get(model)

    def check(self, model: str) -> None:
        """InvalidRequest for what is served no more: the base would answer in its place."""
        if model and model not in self._names and model not in self._requests:
            raise InvalidRequest(f"the adapter {show(model)} was unloaded", parameter="model")
