"""Captures work as a CUDA graph while other engines of this process use the device.

torch hands out 32 streams in turn. A stream taken for a capture may be the one on which another
engine makes its copies, and the waits for these would become part of the graph. And a thread that
waits for the whole device during a capture makes the capture fail. So captures use a stream of
their own, and captures and waits for the device take a lock.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import torch

from quire.backends.cuda_c.launch import own_stream

WHOLE_DEVICE = threading.Lock()
_OURS = "thread_local"  # other threads may use the device during a capture


@contextmanager
def capturing(graph: torch.cuda.CUDAGraph, pool: Any = None) -> Iterator[None]:
    """Capture within this context. Unlike `torch.cuda.graph` it neither collects garbage (a tenth
    of a second, with a million prompt ids in memory) nor empties torch's cache; it only stops the
    garbage collector from freeing device memory meanwhile."""
    with WHOLE_DEVICE:
        stream = _stream(torch.cuda.current_device())
        stream.wait_stream(torch.cuda.current_stream())
        collecting = gc.isenabled()
        gc.disable()
        try:
            with torch.cuda.stream(stream):
                graph.capture_begin(pool=pool, capture_error_mode=_OURS)
                try:
                    yield
                except BaseException:
                    _end_failed(graph)
                    raise
                graph.capture_end()
        finally:
            if collecting:
                gc.enable()
        torch.cuda.current_stream().wait_stream(stream)


def _end_failed(graph: torch.cuda.CUDAGraph) -> None:
    """End a failed capture. torch's random generator would stay bound to it and could not be used
    any more; another capture, which succeeds, releases it."""
    with suppress(RuntimeError):  # it reports the failed capture again
        graph.capture_end()
    another = torch.cuda.CUDAGraph()
    another.capture_begin(capture_error_mode=_OURS)
    torch.zeros(1, device="cuda")
    another.capture_end()


@cache
def _stream(device: int) -> torch.cuda.ExternalStream:
    return torch.cuda.ExternalStream(own_stream(device), device=device)  # type: ignore[no-untyped-call]
