"""Schemas in which an object that names its properties has no others.

JSON Schema lets any other property be added, and a small model that may add some adds them until
its tokens are used up. Nobody who wrote such a schema reads them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from quire.grammar.schema import walk

# With one of these an object may have properties that another part of the schema names.
_ELSEWHERE = ("allOf", "not", "if", "dependentSchemas", "unevaluatedProperties")
_BESIDE = ("anyOf", "oneOf", "$ref", "$dynamicRef")


def closed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A copy, with `additionalProperties: false` where nothing is said of them; as it is where
    that could forbid what the schema wants."""
    made = copy.deepcopy(dict(schema))
    for _, node in walk(made):
        if not isinstance(node, dict):
            continue
        if any(word in node for word in _ELSEWHERE):
            return dict(schema)
        names = node.get("properties")
        if not names or not isinstance(names, dict) or "patternProperties" in node:
            continue
        if any(word in node for word in _BESIDE):
            return dict(schema)
        if _is_enough(names, node):
            node.setdefault("additionalProperties", False)
    return made


def _is_enough(names: Mapping[str, Any], node: Mapping[str, Any]) -> bool:
    """Whether the properties that are named are all that the object must have."""
    required, least = node.get("required", []), node.get("minProperties", 0)
    all_named = isinstance(required, list) and all(name in names for name in required)
    return all_named and isinstance(least, int) and least <= len(names)
