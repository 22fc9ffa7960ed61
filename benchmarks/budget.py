"""Seconds that may be spent, and where results go as they come."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any


class Budget:
    """Counts from the moment it is made."""

    def __init__(self, seconds: float, out: Path) -> None:
        self._end, self._out = time.perf_counter() + seconds, out
        out.mkdir(parents=True, exist_ok=True)

    @property
    def left(self) -> float:
        return self._end - time.perf_counter()

    def write(self, name: str, found: Any) -> None:
        (self._out / f"{name}.json").write_text(json.dumps(found, indent=1))
