"""What every process of an engine needs: private streams, and messages about fatal errors."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from quire.errors import (
    InvalidRequest,
    ModelError,
    NotEnoughMemory,
    NotSupported,
    QuireError,
    RankDied,
)
from quire.replicas.streams import Send


def private(number: int) -> int:
    """A private copy of a stream; libraries that print or read from now on use a replacement."""
    own = os.dup(number)
    if number == 0:
        empty = os.open(os.devnull, os.O_RDONLY)
        os.dup2(empty, 0)
        os.close(empty)
    else:
        os.dup2(2, number)
    return own


def exit_code(serve: Callable[[], None], send: Send) -> int:
    """Serve; returns 0 at the end, 1 after an error that the parent was sent."""
    try:
        serve()
        return 0
    except QuireError as error:
        text, family = str(error), error_family(error)
    except (MemoryError, RuntimeError) as error:
        if not is_about_memory(error):
            raise
        text, family = f"memory ran out: {error}", "memory"
    send({"kind": "failed", "error": text, "error_type": family})
    return 1


def is_about_memory(error: BaseException) -> bool:
    """Whether an error means too little memory. Torch has no type for that on a CPU, only texts."""
    described = ("can't allocate memory", "not enough memory", "bad_alloc", "out of memory")
    return isinstance(error, MemoryError) or any(words in str(error).lower() for words in described)


def error_family(error: QuireError) -> str:
    """The kind of an error for the supervisor: about memory, the model, the request, or a process
    that died, which may not happen again."""
    families: dict[str, Any] = {
        "memory": NotEnoughMemory,
        "model": ModelError,
        "usage": InvalidRequest | NotSupported,
        "death": RankDied,
    }
    return next((name for name, kind in families.items() if isinstance(error, kind)), "engine")
