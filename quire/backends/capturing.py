"""Capturing work as a CUDA graph while other engines of this process use the device.

torch hands out 32 streams in turn: one that is taken for a capture may be the one on which another
engine sends its copies, and what waits for those would become part of the graph. And who waits for
the whole device while a capture lasts ends it. So captures have a stream that nobody else is given;
they, and whoever waits for the device, take turns.
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
_OURS = "thread_local"  # other threads may use the device while this one captures


@contextmanager
def capturing(graph: torch.cuda.CUDAGraph, pool: Any = None) -> Iterator[None]:
    """Unlike `torch.cuda.graph` it neither collects garbage (a tenth of a second, with a million
    prompt ids around) nor empties torch's cache; it only keeps the collector from freeing something
    on the device meanwhile."""
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
    """torch's random numbers would stay in the capture that failed, and nobody could draw them
    outside of one: another capture, which succeeds, takes them out."""
    with suppress(RuntimeError):  # it says again that the capture failed
        graph.capture_end()
    another = torch.cuda.CUDAGraph()
    another.capture_begin(capture_error_mode=_OURS)
    torch.zeros(1, device="cuda")
    another.capture_end()


@cache
def _stream(device: int) -> torch.cuda.ExternalStream:
    return torch.cuda.ExternalStream(own_stream(device), device=device)  # type: ignore[no-untyped-call]
