"""Work on threads whose files are closed by whoever waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Any, TypeVar

Made = TypeVar("Made")


async def to_its_end(
    call: Callable[..., Made], *given: Any, threads: Executor | None = None
) -> Made:
    """What the call returns. A caller that is cancelled meanwhile first waits for it: the files
    that it works on are closed next, and their numbers may be given to others."""
    loop = asyncio.get_running_loop()
    future = loop.run_in_executor(threads, partial(call, *given))
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait((future,))
        raise
