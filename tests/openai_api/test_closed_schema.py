"""Objects of formats and of forced calls have the properties that their schema names."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from quire.openai_api.asks import read_body
from quire.openai_api.closed_schema import closed
from quire.openai_api.fields import CHAT

CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "at": {"$ref": "#/$defs/at"}},
    "required": ["name"],
    "$defs": {"at": {"properties": {"x": {"const": {"properties": {"y": 1}}}}}},
}
NONE = {"additionalProperties": False}


def test_formats_and_forced_calls_are_closed_and_what_was_given_stays() -> None:
    before = copy.deepcopy(CITY)
    at = {"at": {**CITY["$defs"]["at"], **NONE}}
    wanted = {**CITY, "$defs": at, **NONE}
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}]}
    tools = [{"type": "function", "function": {"name": "f", "parameters": CITY}}]
    forced = {"type": "function", "function": {"name": "f"}}
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}
    for more in ({"tools": tools, "tool_choice": forced}, {"response_format": form}):
        [row] = read_body(CHAT, {**body, **more}).rows
        assert row["params"]["structured_outputs"]["json"] == wanted
    [row] = read_body(CHAT, {**body, "structured_outputs": {"json": CITY}}).rows
    assert row["params"]["structured_outputs"]["json"] == before == CITY


@pytest.mark.parametrize(
    "more",
    [
        {"additionalProperties": True},
        {"additionalProperties": {"type": "integer"}},
        {"required": ["name", "unnamed"]},
        {"minProperties": 3},
        {"patternProperties": {"^x": {}}},
        {"allOf": [{"properties": {"other": {}}}]},
        {"anyOf": [{"properties": {"other": {}}}, {"required": ["name"]}]},
        {"properties": {"a": {"not": {"properties": {"b": {}}}}}},
        {"properties": {}},
    ],
)
def test_what_others_may_name_stays_open(more: dict[str, Any]) -> None:
    schema = {"properties": {"name": {}, "at": {}}, **more}
    assert closed(schema) == schema
