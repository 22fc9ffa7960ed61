"""Reads typed values from a model's config, and refuses wrong ones."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from quire.errors import CorruptModel, UnsupportedModel

_REQUIRED: Any = object()


class _Translated(Mapping[str, Any]):
    """A config under other key names, with values for missing keys. It is a view that reads a key
    only when it is asked for, so that tests can see which keys a family does not read."""

    def __init__(
        self, values: Mapping[str, Any], words: Mapping[str, str], unsaid: Mapping[str, Any]
    ) -> None:
        self._values, self._words, self._unsaid = values, words, unsaid

    def __getitem__(self, key: str) -> Any:
        own = self._words.get(key, key)
        if key in self._unsaid and self._values.get(own) is None:
            return self._unsaid[key]
        return self._values[own]

    def __iter__(self) -> Iterator[str]:
        back = {own: key for key, own in self._words.items()}
        found = [back.get(own, own) for own in self._values]
        return iter(dict.fromkeys([*found, *self._unsaid]))

    def __len__(self) -> int:
        return len(list(iter(self)))


MAX_COUNT = 2**31 - 1


class Fields:
    """A config as (key -> value) with checked reads; null counts as absent. With `false_nulls` a
    null is refused for a flag whose default is true, since Transformers would read it as false."""

    def __init__(
        self, values: Mapping[str, Any], source: str, *, false_nulls: bool = False
    ) -> None:
        self.values, self.source, self.false_nulls = values, source, false_nulls

    def _get(self, key: str, default: Any) -> Any:
        value = self.values.get(key)
        if value is not None:
            return value
        if default is _REQUIRED:
            raise CorruptModel(f"{self.source}: {key} is missing")
        return default

    def wrong(self, key: str, rule: str) -> CorruptModel:
        value = str(self.values.get(key))[:100]
        return CorruptModel(f"{self.source}: {key} must be {rule}, it is {value}")

    def unsupported(self, key: str, rule: str) -> UnsupportedModel:
        """As `wrong`, for a valid value that quire's own families do not support."""
        return UnsupportedModel(str(self.wrong(key, rule)))

    def refuse_null(self, *keys: str) -> None:
        """Refuse null where Transformers refuses it, too. Absent is accepted."""
        for key in keys:
            if key in self.values and self.values[key] is None:
                raise self.wrong(key, "a value, or left out")

    def check_only(self, only: Mapping[str, tuple[Any, ...]]) -> None:
        """Refuse all values but these; null or absent is always accepted."""
        for key, allowed in only.items():
            value = self.values.get(key)
            if value is not None and value not in allowed:
                raise UnsupportedModel(
                    f"{self.source}: {key} {str(value)[:100]!r}; quire has "
                    f"{' or '.join(str(one) for one in allowed)}"
                )

    def count(self, key: str, default: Any = _REQUIRED, *, most: int = MAX_COUNT) -> int:
        """A whole number from 1 to `most`."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise self.wrong(key, f"a whole number from 1 to {most:,}")
        return value

    def whole(self, key: str, default: int) -> int:
        """A whole number from 0."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self.wrong(key, "a whole number from 0")
        return value

    def positive(self, key: str, default: Any = _REQUIRED, *, most: float | None = None) -> float:
        """A finite number above 0, at most `most`."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(key, "a number")
        if not 0 < value < math.inf or abs(value) > 1e300:
            raise self.wrong(key, "a finite number above 0")
        if most is not None and value > most:
            raise self.wrong(key, f"a number above 0, at most {most:g}")
        return float(value)

    def optional(self, key: str) -> float | None:
        """A finite number above 0, or None if absent."""
        return None if self.values.get(key) is None else self.positive(key)

    def not_negative(self, key: str, default: float) -> float:
        """A finite number from 0."""
        value = self._get(key, default)
        return 0.0 if value == 0 and value is not False else self.positive(key, default)

    def positives(self, key: str, count: int) -> tuple[float, ...]:
        """A list of `count` finite numbers above 0."""
        value = self._get(key, _REQUIRED)
        if not isinstance(value, list) or len(value) != count:
            raise self.wrong(key, f"a list of {count} numbers")
        return tuple(Fields({key: number}, self.source).positive(key) for number in value)

    def flag(self, key: str, default: bool) -> bool:
        value = self._get(key, default)
        if self.false_nulls and default and key in self.values and self.values[key] is None:
            raise self.unsupported(key, "true or false")
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def word(self, key: str, default: Any = _REQUIRED) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, "a string")
        return value

    def ids(self, key: str) -> tuple[int, ...]:
        """Token ids: one, a list, or none. -1 also means none."""
        value = self._get(key, [])
        found = value if isinstance(value, list) else [value]
        for token in found:
            if (
                isinstance(token, bool)
                or not isinstance(token, int)
                or not -1 <= token <= MAX_COUNT
            ):
                raise self.wrong(key, "a token id or a list of token ids")
        return tuple(token for token in found if token >= 0)

    def under(self, words: Mapping[str, str], **unsaid: Any) -> Fields:
        """The same config under other names: `words` maps a new name to the config's key. `unsaid`
        gives values for names that the config does not have."""
        known = _Translated(self.values, words, unsaid)
        return Fields(known, self.source, false_nulls=self.false_nulls)

    def inner(self, key: str) -> Fields:
        """The object at `key`, empty if absent."""
        value = self._get(key, {})
        if not isinstance(value, dict):
            raise self.wrong(key, "an object")
        return Fields(value, f"{self.source}, {key}", false_nulls=self.false_nulls)
