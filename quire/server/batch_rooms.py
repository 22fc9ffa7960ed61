"""What every batch runs with, and what is known of one while it runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from quire.server.batch_dispatch import Dispatcher
from quire.server.batch_engine import RowEngine
from quire.server.database import Database
from quire.server.storage import Storage

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Rooms:
    """What every batch runs with."""

    database: Database
    storage: Storage
    engine: RowEngine
    dispatcher: Dispatcher
    threads: Executor
    num_rows: dict[str, int]  # "completed" and "failed", of all batches since the server began

    async def on_thread(self, call: Callable[..., Made], *given: Any) -> Made:
        """What the call returns. A run that is cancelled meanwhile first waits for it: the files
        that it works on are closed next."""
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self.threads, partial(call, *given))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait((future,))
            raise


@dataclass(slots=True)
class Live:
    """What is known of a running batch beside its row in the database: rows in the journal, and
    why it does not go on."""

    completed: int = 0
    failed: int = 0
    waiting: str | None = None
    before: int = 0  # rows that were in the journal when this run began
    began: float = field(default_factory=time.time)
    prompt_tokens: int = 0  # of this run
    output_tokens: int = 0
