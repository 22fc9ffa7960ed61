"""The adapters that requests name as their model: given at the start, or loaded since."""

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
    """Adapters by name. A row names one of them, or the model itself by one of its `names`."""

    def __init__(
        self,
        session: Session,
        names: Sequence[str],
        lora: Mapping[str, str],
        loaded: Mapping[str, str],
    ) -> None:
        """`lora` are those of the start, which are checked now. Those `loaded` by an earlier engine
        were checked then; if one is broken now, the requests that use it fail."""
        self._session, self._names, self._numbers = session, frozenset(names), count(1)
        self._requests: Mapping[str, LoRARequest] = {}
        for name, path in lora.items():
            self.load(name, path)
        for name, path in loaded.items():
            self._put(name, path)

    def load(self, name: str, path: str) -> None:
        """Serve the adapter from now on; InvalidAdapter if it does not fit the model."""
        store = self._session.model.adapters
        if store is None:
            raise NotSupported("this engine was made without adapters (enable_lora=True)")
        store.check(LoRARequest(name, 1, path))
        self._put(name, path)

    def _put(self, name: str, path: str) -> None:
        made = LoRARequest(name, next(self._numbers), path)
        self._requests = {**self._requests, name: made}

    def unload(self, name: str) -> None:
        """New rows cannot use the adapter any more; running rows keep it."""
        self._requests = {k: v for k, v in self._requests.items() if k != name}

    def find(self, model: str) -> LoRARequest | None:
        return self._requests.get(model)

    def check(self, model: str) -> None:
        """InvalidRequest for an adapter that is not served any more; else the base would answer."""
        if model and model not in self._names and model not in self._requests:
            raise InvalidRequest(f"the adapter {show(model)} was unloaded", parameter="model")
