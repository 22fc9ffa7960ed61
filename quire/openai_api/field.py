"""Field: one field that a body may have, and what becomes of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from quire.openai_api.errors import bad
from quire.params.rules import show

MOST_ENTRIES = 1 << 14  # of a list, where nothing else bounds it
Kind = Literal["honoured", "moot", "refused"]
_TYPES: dict[str, tuple[type, ...]] = {
    "text": (str,),
    "true or false": (bool,),
    "a whole number": (int,),
    "a number": (int, float),
    "a list": (list,),
    "an object": (dict,),
    "text or a list": (str, list),
    "text or an object": (str, dict),
    "true, false or a whole number": (bool, int),
    "anything": (object,),
}


@dataclass(frozen=True, slots=True)
class Field:
    """One field: what becomes of it, what its value is, and which bodies have it."""

    name: str
    kind: Kind
    value: str
    endpoints: tuple[str, ...]
    why: str

    def check(self, value: Any) -> None:
        """Raise ApiError for a value of another type. A bool is never a number, and what a field
        holds that changes nothing is nobody's matter: some clients send an object as `user`."""
        if self.kind == "moot":
            return
        types = _TYPES[self.value]
        is_right = isinstance(value, types) and (
            not isinstance(value, bool) or bool in types or object in types
        )
        if not is_right:
            raise bad(f"{self.name} is {self.value}, not {show(value)}", param=self.name)
        # Token ids may be more; how many of them is the model's matter.
        if isinstance(value, list) and len(value) > MOST_ENTRIES and type(value[0]) is not int:
            raise bad(
                f"no list has more than {MOST_ENTRIES:,} entries, and {self.name} has "
                f"{len(value):,}",
                param=self.name,
            )


def table(kind: Kind, endpoints: tuple[str, ...], *rows: tuple[str, str, str]) -> list[Field]:
    return [Field(name, kind, value, endpoints, why) for name, value, why in rows]
