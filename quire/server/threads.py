"""Work on threads with files that the waiting caller closes afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Any, TypeVar

Made = TypeVar("Made")


async def run_uncancelled(
    call: Callable[..., Made], *given: Any, threads: Executor | None = None
) -> Made:
    """The result of the call. A caller that is cancelled still waits for its end: the caller then
    closes the files that the call uses, and their descriptors may be reused."""
    loop = asyncio.get_running_loop()
    future = loop.run_in_executor(threads, partial(call, *given))
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait((future,))
        raise
