"""AdapterStore: makes LoRARequests into adapters, which are known by number, and holds their
weights.

An adapter is identified by its name and the bytes of its files. It is checked by its headers when
it is requested. Its weights are read just before a row that uses it begins; the most recently used
ones stay in memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from quire.adapters.files import adapter_directory, digest_of, stamps_of
from quire.adapters.plan import AdapterPlan, plan_adapter
from quire.adapters.sites import Sites
from quire.errors import AdapterFailed, InvalidAdapter, ModelError, QuireError
from quire.params.lora import LoRARequest
from quire.request import Adapter

if TYPE_CHECKING:
    from quire.adapters.read import AdapterWeights

MOST_KNOWN = 10_000  # checked adapters that are remembered


class AdapterStore:
    def __init__(
        self,
        sites: Sites,
        *,
        max_rank: int,
        capacity: int,
        read: Callable[[AdapterPlan], AdapterWeights],
        lacks_room: Callable[[int], str] = lambda _: "",
        download_dir: str | None = None,
        token: str | bool | None = None,
    ) -> None:
        """Adapters may have up to `max_rank`. Weights of `capacity` adapters stay in memory.
        `lacks_room` returns why a device has no room for an adapter, or ""."""
        self._sites, self._max_rank, self._capacity, self._read = sites, max_rank, capacity, read
        self._download_dir, self._token = download_dir, token
        self._lacks_room = lacks_room
        self._numbers = count(1)
        self._known: OrderedDict[tuple[str, str], Adapter] = OrderedDict()  # by name and path
        self._by_content: WeakValueDictionary[tuple[str, str], Adapter] = WeakValueDictionary()
        self._by_number: WeakValueDictionary[int, Adapter] = WeakValueDictionary()
        self._loaded: OrderedDict[int, AdapterWeights] = OrderedDict()

    def find(self, request: LoRARequest) -> Adapter:
        """The requested adapter, checked against the model; InvalidAdapter if it cannot be used."""
        key = (request.lora_name, request.lora_path)
        with _named(request):
            directory = self._directory(request.lora_path)
            known = self._known.get(key)
            if known is None or known.plan.stamps != stamps_of(directory):
                known = self._known[key] = self._check(request, directory)
        self._known.move_to_end(key)
        while len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)
        return known

    def check(self, request: LoRARequest) -> None:
        """InvalidAdapter if it cannot be used with the model. Any thread may call it; nothing is
        stored."""
        with _named(request):
            plan_adapter(self._directory(request.lora_path), self._sites, self._max_rank)

    def _directory(self, path: str) -> Path:
        if not path:
            raise InvalidAdapter(
                "lora_path is empty: give the directory of the adapter", parameter="lora_path"
            )
        return adapter_directory(path, download_dir=self._download_dir, token=self._token)

    def _check(self, request: LoRARequest, directory: Path) -> Adapter:
        plan = plan_adapter(directory, self._sites, self._max_rank)
        content = (request.lora_name, digest_of(directory))
        before = self._by_content.get(content)  # the same bytes, at another path or time
        number = next(self._numbers) if before is None else before.number
        adapter = Adapter(number, *content, request, plan)
        self._by_content[content] = self._by_number[number] = adapter
        return adapter

    def hold(self, number: int) -> QuireError | None:
        """Load an adapter's weights into memory, and reserve room on the device. Returns why that
        fails, or None."""
        try:
            self.weights(number)
            if why := self._lacks_room(number):
                return AdapterFailed(f"adapter {self._by_number[number].name!r} {why}.")
        except QuireError as error:
            return error if isinstance(error, AdapterFailed) else AdapterFailed(str(error))
        except OSError as error:
            return AdapterFailed(f"the files of an adapter cannot be read: {error}")
        return None

    def weights(self, number: int) -> AdapterWeights:
        """The weights of an adapter, read if they are not in memory."""
        if number not in self._loaded:
            adapter = self._by_number[number]
            plan: AdapterPlan = adapter.plan
            made = self._read(plan)
            if stamps_of(plan.directory) != plan.stamps:
                raise AdapterFailed(
                    f"the files of adapter {adapter.name!r} in {plan.directory} changed while a "
                    "request waited for them. Ask again."
                )
            self._loaded[number] = made
        self._loaded.move_to_end(number)
        while len(self._loaded) > self._capacity:
            self._loaded.popitem(last=False)
        return self._loaded[number]

    def base_changed(self) -> None:
        """Called before the model gets other weights: what was computed from those it had is then
        wrong, and is computed again when it is needed."""
        for number in list(self._loaded):
            adapter = self._by_number.get(number)
            if adapter is None or adapter.plan.needs_base:
                del self._loaded[number]


@contextmanager
def _named(request: LoRARequest) -> Iterator[None]:
    """Turns errors of files into errors of an adapter."""
    try:
        yield
    except (ModelError, OSError) as error:
        raise InvalidAdapter(
            f"adapter {request.lora_name!r}: {error}",
            parameter="lora_path",
            value=request.lora_path,
        ) from error
