"""One row as the feeder sees it: its predicted cost, and the beginning of its prompt."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Task:
    """`cost` is predicted work, in tokens. Rows with the same `beginning` share the first part of
    their prompts; None shares with no other row. `asked` is sent to the engine with the row's
    number; `row` belongs to the caller."""

    number: int
    cost: float
    asked: Any = None
    row: Any = None
    size: int = 0  # bytes, about
    beginning: Hashable = None
