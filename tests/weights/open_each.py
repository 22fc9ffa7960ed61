"""Opens model files named on stdin and reports, as JSON, what came of each. Run as a script.

Its own process, without torch, so that memory is seen; every file it opens is recorded.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

from quire.errors import QuireError
from quire.weights.checkpoint import stored_tensors
from quire.weights.gguf_file import GgufFile

opened: list[str] = []


def record(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and isinstance(arguments[0], str):
        opened.append(arguments[0])


def outcome(path: Path) -> dict[str, Any]:
    del opened[:]
    before, start = peak(), time.perf_counter()
    try:
        tensors = GgufFile(path).tensors if path.suffix == ".gguf" else stored_tensors(path)
        error, message = None, f"{len(tensors)} tensors"
    except QuireError as caught:
        error, message = type(caught).__name__, str(caught)
    return {
        "error": error,
        "message": message,
        "seconds": time.perf_counter() - start,
        "megabytes": peak() - before,
        "opened": list(opened),
    }


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    sys.addaudithook(record)
    print(json.dumps([outcome(Path(line)) for line in sys.stdin.read().splitlines()]))
    unwanted = {"torch", "transformers"} & sys.modules.keys()
    if unwanted:
        sys.exit(f"reading headers imported {unwanted}")
