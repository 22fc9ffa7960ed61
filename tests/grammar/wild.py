"""Schemas of every keyword that is followed, put together by chance: the same ones each time."""

from __future__ import annotations

import random
from typing import Any

PATTERNS = [
    *("^[A-Z]{2}-[0-9]{3}$", "ab", "^a|b$", r"^\d+$", r"\S+ \S+", "^[^a-z]{1,4}$", "^(x|yy)*$"),
    *(r"^\w{1,5}$", "^.{0,3}$", r"^[\w.-]+@x$", r"^\D\d$", "[é-ü]{2}$", r"^[^\d\s]+$", '^"q"$'),
]
FORMATS = ["date", "time", "date-time", "email", "uuid", "ipv4", "ipv6", "duration", "hostname"]
NAMES = ["a", "b", "id", "é", "a b", 'q"', "x\n", "\\", "名", "", "$ref", "type"]
VALUES = ["a", "é", 'q"', "x\ny", "\x01", "</s>", 1, -2, 2.5, 0, True, None, [1], {"a": 1}, 1e20]
BOUNDS = [0, 1, -1, 5, -7, 10, 99, 100, 0.5, -0.5, 2.25, 3.0, 1e-3, 12345, -0.001, 1e6, 10**400]


def wild_schema(seed: int) -> dict[str, Any]:
    rng = random.Random(seed)
    schema = _Wild(rng).schema(3)
    return {**schema, "$defs": {"D0": _Wild(rng).schema(0), "D1": _Wild(rng).schema(1)}}


class _Wild:
    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def schema(self, depth: int) -> dict[str, Any]:
        flat = [self._text, self._number, self._number, self._listed, self._listed, self._types]
        deep = [self._object, self._object, self._array, self._union, self._reference]
        return self._rng.choice(flat if depth <= 0 else [*flat, *deep * 2])(depth)

    def _maybe(self, chance: float, **said: Any) -> dict[str, Any]:
        return said if self._rng.random() < chance else {}

    def _text(self, depth: int) -> dict[str, Any]:
        rng = self._rng
        return {
            "type": "string",
            **self._maybe(0.5, minLength=rng.randint(0, 3)),
            **self._maybe(0.6, maxLength=rng.randint(2, 12)),
            **self._maybe(0.4, pattern=rng.choice(PATTERNS)),
            **self._maybe(0.2, format=rng.choice(FORMATS)),
        }

    def _number(self, depth: int) -> dict[str, Any]:
        sides = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
        bounds = {side: self._rng.choice(BOUNDS) for side in sides if self._rng.random() < 0.35}
        kind = self._rng.choice(["integer", "number"])
        return {"type": kind, **bounds, **self._maybe(0.1, multipleOf=2)}

    def _listed(self, depth: int) -> dict[str, Any]:
        values = self._rng.sample(VALUES, self._rng.randint(1, 4))
        return {"const": values[0]} if self._rng.random() < 0.3 else {"enum": values}

    def _types(self, depth: int) -> dict[str, Any]:
        kinds = self._rng.sample(["string", "integer", "null", "boolean", "number"], 2)
        return {"type": kinds, "maxLength": 5, "minimum": 0}

    def _object(self, depth: int) -> dict[str, Any]:
        rng = self._rng
        names = rng.sample(NAMES, rng.randint(0, 4))
        others = rng.choice([False, False, False, True, self.schema(0)])
        owners = rng.choice([{"enum": ["a", "b"]}, {"pattern": "^[ab]$"}, {"type": "string"}])
        return {
            "type": "object",
            **self._maybe(0.9, properties={name: self.schema(depth - 1) for name in names}),
            "required": [name for name in names if rng.random() < 0.5],
            "additionalProperties": others,
            **self._maybe(0.1, patternProperties={"^x-": self.schema(0)}),
            **self._maybe(0.1, minProperties=rng.randint(0, 2)),
            **self._maybe(0.1, maxProperties=rng.randint(1, 3)),
            **self._maybe(0.1, propertyNames=owners),
        }

    def _array(self, depth: int) -> dict[str, Any]:
        rng = self._rng
        first = [self.schema(depth - 1) for _ in range(rng.randint(1, 3))]
        return {
            "type": "array",
            **self._maybe(0.8, items=self.schema(depth - 1)),
            **self._maybe(0.3, prefixItems=first),
            **self._maybe(0.4, minItems=rng.randint(0, 3)),
            **self._maybe(0.6, maxItems=rng.randint(1, 4)),
        }

    def _union(self, depth: int) -> dict[str, Any]:
        options = [self.schema(depth - 1) for _ in range(self._rng.randint(1, 3))]
        return {self._rng.choice(["anyOf", "anyOf", "oneOf", "allOf"]): options}

    def _reference(self, depth: int) -> dict[str, Any]:
        return {"$ref": self._rng.choice(["#/$defs/D0", "#/$defs/D1"])}
