"""Arrays of the host on their way to a device."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def on_device(array: npt.NDArray[np.generic], device: torch.device) -> Tensor:
    """A copy on the device, ready for all work that is queued on it after this call. For a GPU it
    is made from pinned memory: else the host would wait until all queued work is done."""
    made = torch.from_numpy(np.ascontiguousarray(array))
    if device.type != "cuda":
        return made.to(device)
    return made.pin_memory().to(device, non_blocking=True)
