"""The priorities that a call gives its prompts."""

from __future__ import annotations

from collections.abc import Sequence

from quire.errors import InvalidParams


def priorities_of(priority: Sequence[int], first: int, count: int) -> list[int]:
    """The priorities of prompts first .. first + count."""
    some = list(priority[first : first + count])
    if len(some) < count:
        raise wrong_priorities(f"has {len(priority)} entries, and there are more prompts")
    for value in some:
        if isinstance(value, bool) or not isinstance(value, int):
            raise wrong_priorities(f"has {value!r}, which is no whole number")
    return some


def wrong_priorities(what: str) -> InvalidParams:
    return InvalidParams(
        f"priority {what}; give each prompt a whole number, lower first", parameter="priority"
    )
