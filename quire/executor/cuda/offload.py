"""A model's weights out of the GPU's memory and back, without building the model anew.

The tensors stay the same objects; only the memory behind them goes. When it comes back it may lie
elsewhere, so nothing that was captured before may be run after.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import torch
from torch import Tensor

from quire.backends.capturing import WHOLE_DEVICE
from quire.models.decoder import Decoder
from quire.models.model import ModuleModel


class HostCopies:
    """The weights of a model in main memory, while the GPU has none."""

    def __init__(self, model: Decoder | ModuleModel) -> None:
        """Take them out."""
        self._copies: list[tuple[torch.UntypedStorage, torch.UntypedStorage]] = []
        seen: set[int] = set()
        for tensor in _tensors(model):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in seen:  # head and table may be one
                seen.add(storage.data_ptr())
                copy = torch.UntypedStorage(storage.nbytes())  # type: ignore[no-untyped-call]
                self._copies.append((storage, copy.copy_(storage, non_blocking=False)))
        for storage, _ in self._copies:
            storage.resize_(0)

    def bring_back(self) -> None:
        """Put them back where the model looks for them."""
        for storage, copy in self._copies:
            storage.resize_(copy.nbytes())
            storage.copy_(copy)
        self._copies.clear()


def give_back() -> None:
    """To the GPU, what nobody holds any more: layers and closures hold each other in cycles."""
    gc.collect()
    with WHOLE_DEVICE:
        torch.cuda.empty_cache()


def _tensors(model: Decoder | ModuleModel) -> Iterator[Tensor]:
    """What takes memory on the device: matrices, tables, biases and norms."""
    if not isinstance(model, Decoder):
        yield from model.tensors()
        return
    for places in model.places.values():
        for place in places:
            yield from place.tensors()
