"""Creates the GPU's context while torch is imported, which takes seconds.

The driver does it without holding Python's lock, and torch then finds it ready. This file imports
neither torch nor, in the thread, anything else: two threads that import modules which depend on
each other may get half-initialised ones.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
import threading
from pathlib import Path

from quire.executor.driver import DRIVER

TORCH_CUDA = "libtorch_cuda.so"


def wake_gpu(wanted: str | None) -> threading.Thread | None:
    """Begin to create the first GPU's context in a thread, if an engine will use it. If it fails,
    nothing else does, and nothing has to wait for it."""
    # If torch is loaded already, the program may have chosen another device.
    if wanted == "cpu" or "torch" in sys.modules or not torch_knows_cuda():
        return None
    thread = threading.Thread(target=_make_context, name="quire-waking", daemon=True)
    thread.start()
    return thread


def torch_knows_cuda() -> bool:
    """Whether the installed torch has CUDA, without importing it: an unused context would only take
    memory of the device."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return False
    return (Path(found.origin).parent / "lib" / TORCH_CUDA).exists()


def _make_context() -> None:
    """Retain the first device's primary context, which is the one that torch uses."""
    try:
        driver = ctypes.CDLL(DRIVER)
    except OSError:
        return
    context = ctypes.c_void_p()
    if not driver.cuInit(0):
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
