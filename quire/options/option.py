"""Option: one line of the table of options, and how Options declares one."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Literal

from quire.options.checks import Check, flag

Kind = Literal["honoured", "moot", "refused"]


@dataclass(frozen=True, slots=True)
class Option:
    """One option. `harmless` are further values that ask only for what quire does anyway."""

    name: str
    kind: Kind
    default: Any
    why: str
    check: Check | None = None
    harmless: tuple[Any, ...] = ()

    @property
    def is_flag(self) -> bool:
        """Whether its values are true, false or unset; without default and check, by its name."""
        named = self.default is None and self.name.startswith(("enable_", "disable_"))
        return isinstance(self.default, bool) or self.check is flag or (not self.check and named)

    def is_default(self, value: Any) -> bool:
        """Whether `value` asks for nothing: the default, None, or an empty container."""
        if value is None or (isinstance(value, Collection) and len(value) == 0):
            return True
        plain = isinstance(value, bool | int | float | str | list | tuple | dict | set)
        return plain and (value == self.default or value in self.harmless)


def honoured(default: Any, check: Check, why: str) -> Any:
    """A field of Options: its default as scripts write it, the check of a value, and its line in
    docs/api.md."""
    plain = None if default is None else check("", default)
    return field(default=plain, metadata={"default": default, "check": check, "why": why})
