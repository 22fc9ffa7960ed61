"""Arrays of the host on their way to a device."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def on_device(array: npt.NDArray[np.generic], device: torch.device) -> Tensor:
    """The array there; what is computed from here on sees it. From pinned memory, or the host would
    wait until a GPU has done all that it was given before."""
    made = torch.from_numpy(np.ascontiguousarray(array))
    if device.type != "cuda":
        return made.to(device)
    return made.pin_memory().to(device, non_blocking=True)
