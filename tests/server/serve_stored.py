"""A server of files and batches in a process of its own, to be killed: `python -m
tests.server.serve_stored FOLDER SECONDS [PORT]`, where SECONDS is how long the fake engine takes
for a row. Writes its port to stdout when it answers."""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path

import uvicorn

from quire.server.app import make_app
from quire.server.batch_service import BatchService, StoreSettings
from quire.server.keys import Keys
from quire.server.services import Services, Settings
from tests.server.stored import MODEL, FakeEngine


async def main(folder: Path, seconds: float, port: int = 0) -> None:
    engine = FakeEngine(seconds=seconds)
    if seconds < 0:
        engine.state = "loading"  # for ever
    services = Services(
        engine=engine,  # type: ignore[arg-type]
        settings=Settings(model=MODEL, names=(MODEL,), data_dir=folder),
        keys=Keys(),
    )
    listening = socket.create_server(("127.0.0.1", port))
    config = uvicorn.Config(
        make_app(services, BatchService(StoreSettings(folder))), log_level="error", lifespan="on"
    )
    print(listening.getsockname()[1], flush=True)
    await uvicorn.Server(config).serve([listening])


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), float(sys.argv[2]), *map(int, sys.argv[3:])))
