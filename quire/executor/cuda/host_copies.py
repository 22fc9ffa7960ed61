"""Copies results to the host beside the computation.

A block is copied into pinned memory on a stream of its own while the device computes the next plan.
A reader waits for the copy of its block only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class HostCopy:
    """A block being copied; `sent` is the event after its copy, None on a CPU."""

    home: Tensor
    sent: Any = None

    def read(self) -> npt.NDArray[np.int64]:
        if self.sent is not None:
            self.sent.synchronize()
        return self.home.numpy()


class HostCopies:
    """Copies blocks to the host, in the order in which they are given."""

    def __init__(self, device: torch.device) -> None:
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def send(self, block: Tensor) -> HostCopy:
        """The caller must not write to `block` again."""
        stream = self._stream
        if stream is None:
            return HostCopy(block)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            home = torch.empty(block.shape, dtype=block.dtype, pin_memory=True)
            home.copy_(block, non_blocking=True)
            sent = torch.cuda.Event()  # type: ignore[no-untyped-call]
            sent.record(stream)
        block.record_stream(stream)
        return HostCopy(home, sent)
