"""Turns errors of a GPU into quire's errors, with its numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from quire.errors import EngineError, NotEnoughMemory


@contextmanager
def gpu_errors(when: str) -> Iterator[None]:
    """`when` ends the sentence about what happened: "in a step"."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        free, total = torch.cuda.mem_get_info()
        raise NotEnoughMemory(
            f"the GPU ran out of memory {when}: {free / 1e9:.2f} GB of {total / 1e9:.1f} GB "
            "are free. Lower gpu_memory_utilization, max_num_batched_tokens or max_num_seqs."
        ) from error
    except torch.AcceleratorError as error:
        raise EngineError(
            f"the GPU failed {when}: {error}. The process must be started again."
        ) from error
