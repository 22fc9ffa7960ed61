"""Option: one line of the table of options."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

from quire.options.checks import Check

Kind = Literal["honoured", "moot", "refused"]


@dataclass(frozen=True, slots=True)
class Option:
    """One option. `harmless` are further values that ask for nothing quire does not do."""

    name: str
    kind: Kind
    default: Any
    why: str
    check: Check | None = None
    harmless: tuple[Any, ...] = ()

    def is_default(self, value: Any) -> bool:
        """Whether `value` asks for nothing: the default, None, or an empty container."""
        if value is None or (isinstance(value, Collection) and len(value) == 0):
            return True
        plain = isinstance(value, bool | int | float | str | list | tuple | dict | set)
        return plain and (value == self.default or value in self.harmless)


def honoured(name: str, default: Any, check: Check, why: str) -> Option:
    """One that does what it says, with its line in docs/api.md."""
    return Option(name, "honoured", default, why, check)
