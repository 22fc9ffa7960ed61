"""What all running batches share, and the state of each running batch."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

from quire.server.batch_dispatch import Dispatcher
from quire.server.batch_engine import BatchEngine
from quire.server.database import Database
from quire.server.storage import Storage
from quire.server.threads import Made, run_uncancelled


@dataclass(frozen=True, slots=True)
class BatchContext:
    database: Database
    storage: Storage
    engine: BatchEngine
    dispatcher: Dispatcher
    threads: Executor
    num_rows: dict[str, int]  # "completed" and "failed", of all batches since the server began

    async def on_thread(self, call: Callable[..., Made], *given: Any) -> Made:
        return await run_uncancelled(call, *given, threads=self.threads)


@dataclass(slots=True)
class Live:
    """The state of a running batch that is not in the database: rows in its journal, and the reason
    if it waits."""

    completed: int = 0
    failed: int = 0
    waiting: str | None = None
    before: int = 0  # rows that were in the journal when this run began
    began: float = field(default_factory=time.time)
    prompt_tokens: int = 0  # of this run
    output_tokens: int = 0
