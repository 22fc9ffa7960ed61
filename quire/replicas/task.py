"""One row as the feeder sees it: what it probably costs, and what it begins with."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Task:
    """`cost` is predicted work, in tokens; rows of one `beginning` share a prompt's first part, and
    None shares with no other row. `asked` goes to the engine with the row's number; `row` is the
    caller's own."""

    number: int
    cost: float
    asked: Any = None
    row: Any = None
    size: int = 0  # bytes, about
    beginning: Hashable = None
