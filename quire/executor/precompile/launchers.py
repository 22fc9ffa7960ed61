"""Loads the functions that launch kernels one at a time.

Triton has one such function for each signature, in a library of its own, and all these libraries
are modules with one name. If a library is loaded a second time, Python returns the module loaded
last under that name, with this library's functions put into it. Before Triton has read its function
from it, another thread may have put in those of its own library. The kernel is then launched with
the arguments of another, and fails or computes something wrong. This happened in one of about a
thousand loads, with twelve threads.
"""

from __future__ import annotations

import threading
from functools import wraps
from typing import Any

_LOADING = threading.Lock()


def load_launchers_in_turn() -> None:
    """From now on, launchers are loaded under a lock in this process."""
    from triton.backends.nvidia.driver import CudaLauncher

    load = CudaLauncher.__init__
    if hasattr(load, "__wrapped__"):  # already wrapped
        return

    @wraps(load)
    def in_turn(self: Any, src: Any, metadata: Any) -> None:
        with _LOADING:
            load(self, src, metadata)

    CudaLauncher.__init__ = in_turn
