"""Functions that launch kernels, loaded one at a time.

Triton has one for each signature, in a library of its own, and all of them are modules of one name.
Python gives who loads such a library a second time the module that came last under that name, with
the functions of this library put into it: until Triton has taken its function out, another thread
may have had those of its own put there. Then a kernel is launched with the arguments of another: it
fails, or computes something else. One of about a thousand loads did, in twelve threads.
"""

from __future__ import annotations

import threading
from functools import wraps
from typing import Any

_LOADING = threading.Lock()


def load_launchers_in_turn() -> None:
    """From now on, who has a launcher loaded in this process waits for others to have theirs."""
    from triton.backends.nvidia.driver import CudaLauncher

    load = CudaLauncher.__init__
    if hasattr(load, "__wrapped__"):  # this was called before
        return

    @wraps(load)
    def in_turn(self: Any, src: Any, metadata: Any) -> None:
        with _LOADING:
            load(self, src, metadata)

    CudaLauncher.__init__ = in_turn
