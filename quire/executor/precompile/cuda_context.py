"""The GPU's context, made while torch is imported, which takes seconds.

The driver works on it without Python; torch finds it done. No torch here, and nothing that a
thread would import: two threads that import what depends on each other get it half made.
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
    """Begin to make the first GPU's context, if that is what an engine will use; nothing fails
    by it, and nobody need wait for it."""
    # A program that has torch already may have chosen another device with it.
    if wanted == "cpu" or "torch" in sys.modules or not torch_knows_cuda():
        return None
    thread = threading.Thread(target=_make_context, name="quire-waking", daemon=True)
    thread.start()
    return thread


def torch_knows_cuda() -> bool:
    """Without importing it: an idle context would hold some of the device's memory for nothing."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return False
    return (Path(found.origin).parent / "lib" / TORCH_CUDA).exists()


def _make_context() -> None:
    """Hold the first device's own context, the one that torch uses."""
    try:
        driver = ctypes.CDLL(DRIVER)
    except OSError:
        return
    context = ctypes.c_void_p()
    if not driver.cuInit(0):
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
