"""Logits processors that installed packages offer by entry points.

They are loaded by name only. A package that happens to be installed beside quire must not change
what a script generates; but a script that relied on it must see a note that it is not used.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUPS = ("quire.logits_processors", "vllm.logits_processors")


def installed() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points  # slow to import, and rarely needed

    offered = entry_points()  # reads files of every installed package, so it is called once
    return {one.name: one for group in reversed(GROUPS) for one in offered.select(group=group)}


def unused_line(used: Iterable[type]) -> str:
    """A note about installed processors that are not among `used`; empty if there are none."""
    names = {f"{one.__module__}:{one.__qualname__}" for one in used}
    unused = sorted(name for name, point in installed().items() if point.value not in names)
    if not unused:
        return ""
    return (
        f"logits processors are installed and not used: {', '.join(unused)}. To use them, pass "
        f"logits_processors={unused}."
    )
