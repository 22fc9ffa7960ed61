"""Moves a model's weights out of the GPU's memory and back, without building the model again.

The tensors stay the same objects; only their memory is freed. Later they may have other addresses,
so graphs that were captured before must not run.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import torch
from torch import Tensor

from quire.backends.capturing import WHOLE_DEVICE
from quire.models.decoder import Decoder
from quire.models.model import ModuleModel


class OffloadedWeights:
    """A model's weights in main memory, while the GPU does not have them."""

    def __init__(self, model: Decoder | ModuleModel) -> None:
        """Copy the weights and free their GPU memory."""
        self._copies: list[tuple[torch.UntypedStorage, torch.UntypedStorage]] = []
        seen: set[int] = set()
        for tensor in _tensors(model):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in seen:  # head and embedding may share it
                seen.add(storage.data_ptr())
                copy = torch.UntypedStorage(storage.nbytes())  # type: ignore[no-untyped-call]
                self._copies.append((storage, copy.copy_(storage, non_blocking=False)))
        for storage, _ in self._copies:
            storage.resize_(0)

    def bring_back(self) -> None:
        """Copy the weights back into the model's tensors."""
        for storage, copy in self._copies:
            storage.resize_(copy.nbytes())
            storage.copy_(copy)
        self._copies.clear()


def give_back() -> None:
    """Free unused GPU memory, after collecting garbage: layers are in reference cycles."""
    gc.collect()
    with WHOLE_DEVICE:
        torch.cuda.empty_cache()


def _tensors(model: Decoder | ModuleModel) -> Iterator[Tensor]:
    """All tensors that use memory on the device: matrices, tables, biases and norms."""
    if not isinstance(model, Decoder):
        yield from model.tensors()
        return
    for places in model.places.values():
        for place in places:
            yield from place.tensors()
