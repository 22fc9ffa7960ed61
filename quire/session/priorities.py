"""The priorities that a call gives its prompts."""

from __future__ import annotations

from collections.abc import Sequence

from quire.errors import InvalidParams
from quire.params.rules import show

FURTHEST = 2**31 - 1  # plans hold priorities in arrays


def priorities_of(priority: Sequence[int], first: int, count: int) -> list[int]:
    """The priorities of prompts first .. first + count."""
    some = list(priority[first : first + count])
    if len(some) < count:
        raise wrong_priorities(f"has {len(priority)} entries, and there are more prompts")
    for value in some:
        if isinstance(value, bool) or not isinstance(value, int):
            raise wrong_priorities(f"has {value!r}, which is no whole number")
        if not -FURTHEST <= value <= FURTHEST:
            raise wrong_priorities(f"has {show(value)}, beyond {-FURTHEST} to {FURTHEST}")
    return some


def check_listed(priority: Sequence[int]) -> None:
    if isinstance(priority, str | bytes) or not isinstance(priority, Sequence):
        raise wrong_priorities(f"is a list, not a {type(priority).__name__}")


def wrong_priorities(what: str) -> InvalidParams:
    return InvalidParams(
        f"priority {what}; give each prompt a whole number, lower first", parameter="priority"
    )
