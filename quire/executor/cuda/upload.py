"""Sends host arrays to the device together.

A plan changes a little of many things: rows, tables, token ids. One transfer from pinned memory
carries all of it, so that the host neither waits for the device nor pays for a dozen copies.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Longs = npt.NDArray[np.int64]

_PADDING: Longs = np.zeros(1, np.int64)


class Upload:
    """Named arrays that are sent once: integers as int64, other numbers as float64.

    add("rows", [4, 7]), add("ids", [1, 2, 3]), send() -> one tensor with both on the device;
    take("ids") is its part 1 2 3. Every part is aligned to 16 bytes.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._parts: list[Longs] = []
        self._places: dict[str, slice] = {}
        self._floats: set[str] = set()
        self._length = 0
        self._sent: Tensor | None = None

    def add(self, name: str, numbers: npt.NDArray[Any] | list[int]) -> None:
        array = np.asarray(numbers)
        if array.dtype.kind == "f" and array.size:
            self._floats.add(name)
            array = np.ascontiguousarray(array, np.float64).view(np.int64)
        part = np.ascontiguousarray(array, np.int64).reshape(-1)
        if self._length % 2:
            # For addresses not aligned to 16 bytes kernels would be compiled again.
            self._parts.append(_PADDING)
            self._length += 1
        self._places[name] = slice(self._length, self._length + len(part))
        self._parts.append(part)
        self._length += len(part)

    def send(self) -> None:
        """Begin the transfer. Later work on the same stream sees the data."""
        on_gpu = self._device.type == "cuda"
        staged = torch.empty(self._length, dtype=torch.int64, pin_memory=on_gpu)
        if self._parts:
            np.concatenate(self._parts, out=staged.numpy())
        # The allocator does not reuse the pinned memory before the copy is done.
        self._sent = staged.to(self._device, non_blocking=True)

    def take(self, name: str) -> Tensor:
        if self._sent is None:
            raise RuntimeError("a parcel is sent before it is opened")
        numbers = self._sent[self._places[name]]
        return numbers.view(torch.float64) if name in self._floats else numbers
