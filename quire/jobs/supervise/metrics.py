"""metrics.jsonl: a line a second from the engine. Nice to have: a full disk silences it, and the
journal beside it tells what that means."""

from __future__ import annotations

import json
from io import FileIO
from pathlib import Path

from quire.jobs.store.durable import open_own
from quire.replicas.wire import Message

NAME = "metrics.jsonl"


class MetricsFile:
    """Appends lines, and waits for none of them. Made with the first line, not before."""

    def __init__(self, job_dir: Path) -> None:
        self._path = job_dir / NAME
        self._file: FileIO | None = None
        self._silent = False

    def append(self, message: Message) -> None:
        if self._silent:
            return
        line = {name: value for name, value in message.items() if name != "kind"}
        try:
            file = self._file or open(self._path, "ab", buffering=0, opener=open_own)  # noqa: SIM115
            file.write(json.dumps(line).encode() + b"\n")
            self._file = file
        except OSError:
            self._silent = True

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
