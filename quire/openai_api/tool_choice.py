"""The tools that a chat offers, and those that it must call. A grammar makes forced calls JSON; if
the text has a format, too, the model writes either that format or calls."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from quire.openai_api.errors import ApiError, bad, not_supported
from quire.params.rules import show

MOST_TOOLS, MOST_CALLS = 128, 16  # tools offered; calls in one answer that a grammar allows


@dataclass(frozen=True, slots=True)
class ToolUse:
    """`offered` tools are in the prompt. `forced` is the function whose arguments are the whole
    answer, or "" if the answer must be a list of calls. With None the answer is free, or, with
    `in_format`, either calls in a usual form or a text in the format."""

    offered: tuple[Mapping[str, Any], ...] = ()
    forced: str | None = None
    schema: Mapping[str, Any] | None = None  # the schema of a forced answer
    at_most: int | None = None  # calls in one answer
    in_format: bool = False
    field: str = "tools"  # the field that an error of the schema names

    @property
    def constrained(self) -> bool:
        """Whether a grammar covers the whole answer, so that its kind is known only at its end."""
        return self.in_format or self.forced is not None


def read_tools(given: Mapping[str, Any]) -> ToolUse:
    tools = [_checked(tool, i) for i, tool in enumerate(given.get("tools", []))]
    if len(tools) > MOST_TOOLS:
        raise bad(f"tools has at most {MOST_TOOLS} functions, not {len(tools)}", param="tools")
    at_most = 1 if given.get("parallel_tool_calls") is False else None
    choice = given.get("tool_choice", "auto")
    if choice == "none":
        return ToolUse()
    if not tools:
        if choice != "auto":
            raise bad("tool_choice needs tools to choose from", param="tool_choice")
        return ToolUse()
    offered = {str(tool["function"]["name"]): tool for tool in tools}
    if isinstance(choice, dict):
        name = _named(choice)
        if name is not None:
            return _one(offered, tools, name)
        choice, offered = _allowed(choice, offered)
    if choice == "auto":
        return ToolUse(tuple(offered.values()), at_most=at_most)
    if choice != "required":
        raise bad(
            f"tool_choice is none, auto, required or names a function, not {show(choice)}",
            param="tool_choice",
        )
    schema = _calls_schema(list(offered.values()), at_most or MOST_CALLS)
    field = _field(tools, *offered) if len(offered) == 1 else "tools"
    return ToolUse(tuple(offered.values()), "", schema, at_most, field=field)


def _checked(tool: Any, i: int) -> dict[str, Any]:
    where = f"tools[{i}]"
    if not isinstance(tool, dict):
        raise bad(f"{where} is an object, not {show(tool)}", param="tools")
    if tool.get("type") != "function":
        raise no_function(tool, i)
    function = tool.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise bad(f"{where}.function is an object with a name", param="tools")
    parameters = function.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise bad(f"{where}.function.parameters is a JSON schema", param="tools")
    return tool


def no_function(tool: Any, i: int) -> ApiError:
    kind = tool.get("type") if isinstance(tool, Mapping) else tool
    return not_supported(
        f"tools[{i}] is of type {show(kind)}, and functions alone are built; leave it out, or turn "
        "it off in the client's settings",
        param="tools",
    )


def _named(choice: Mapping[str, Any]) -> str | None:
    """The function that a choice names; None for a choice of another kind."""
    if choice.get("type") != "function":
        return None
    function = choice.get("function")
    name = function.get("name") if isinstance(function, dict) else choice.get("name")
    if not isinstance(name, str):
        raise bad("tool_choice.function has a name", param="tool_choice")
    return name


def _one(offered: Mapping[str, Any], tools: list[dict[str, Any]], name: str) -> ToolUse:
    if name not in offered:
        raise _unknown(name)
    return ToolUse(tuple(tools), name, _parameters(offered[name]), 1, field=_field(tools, name))


def _field(tools: list[dict[str, Any]], name: str) -> str:
    """The place of a function's schema in the body; of two with one name, that of the last."""
    i = max(i for i, tool in enumerate(tools) if tool["function"]["name"] == name)
    return f"tools[{i}].function.parameters"


def _unknown(name: str) -> ApiError:
    return bad(f"tool_choice names {show(name)}, which is not among the tools", param="tool_choice")


def _allowed(
    choice: Mapping[str, Any], offered: dict[str, dict[str, Any]]
) -> tuple[Any, dict[str, dict[str, Any]]]:
    """The mode and the tools of {"type": "allowed_tools", ...}."""
    if choice.get("type") != "allowed_tools":
        raise not_supported("tool_choice is of type function or allowed_tools", param="tool_choice")
    inner = choice.get("allowed_tools", choice)
    listed = inner.get("tools") if isinstance(inner, dict) else None
    if not isinstance(listed, list) or not listed:
        raise bad("tool_choice.allowed_tools has a list of tools", param="tool_choice")
    names = [_named(tool) if isinstance(tool, dict) else None for tool in listed]
    for name in names:
        if name not in offered:
            raise _unknown(str(name))
    return inner.get("mode", "auto"), {str(name): offered[str(name)] for name in names}


def _parameters(tool: Mapping[str, Any]) -> dict[str, Any]:
    # A function without `parameters` takes no arguments.
    return dict(tool["function"].get("parameters") or {"type": "object", "properties": {}})


def beside_format(tools: ToolUse, wanted: Mapping[str, Any]) -> tuple[ToolUse, dict[str, Any]]:
    """Tools that may be called in place of a text in the `wanted` format, and the structured output
    that allows both."""
    schema = {"type": "object"} if wanted == {"json_object": True} else wanted.get("json")
    if len(wanted) != 1 or not isinstance(schema, dict):
        raise bad(
            f"tools go with a text that is JSON by a schema, not with {show(', '.join(wanted))}; "
            "leave one of them out, or set tool_choice to none",
            param="tools",
        )
    # Calls in the form of Hermes and Qwen, and of models that have no mark for calls.
    marked = {
        "type": "tags_with_separator",
        "tags": [
            {
                "begin": "<tool_call>\n",
                "content": {"type": "json_schema", "json_schema": _call_schema(tools.offered)},
                "end": "\n</tool_call>",
            }
        ],
        "separator": "\n",
        "at_least_one": True,
        "stop_after_first": tools.at_most == 1,
    }
    plain = _call_schema(tools.offered, arguments="parameters")
    either = [
        {"type": "json_schema", "json_schema": schema},
        marked,
        {"type": "json_schema", "json_schema": plain},
    ]
    tag = {"type": "structural_tag", "format": {"type": "or", "elements": either}}
    return replace(tools, in_format=True), {"structural_tag": json.dumps(tag)}


def _calls_schema(tools: list[dict[str, Any]], most: int) -> dict[str, Any]:
    """A list of calls, each of one of these functions."""
    call = _call_schema(tools)
    definitions = {"$defs": call.pop("$defs")} if "$defs" in call else {}
    return {"type": "array", "minItems": 1, "maxItems": most, "items": call, **definitions}


def _call_schema(
    tools: Iterable[Mapping[str, Any]], *, arguments: str = "arguments"
) -> dict[str, Any]:
    """The schema of a call of one of these functions. Definitions to which a schema refers are
    moved to the root, under unique names."""
    kinds, definitions = list[dict[str, Any]](), dict[str, Any]()
    for i, tool in enumerate(tools):
        schema = _parameters(tool)
        # Definitions that are no object stay in place; the grammar refuses them.
        places = [p for p in ("$defs", "definitions") if isinstance(schema.get(p), dict)]
        moved = {
            f"#/{place}/{name}": f"tool{i}_{place.strip('$')}_{name}"
            for place in places
            for name in schema[place]
        }
        inner = _redirected(schema, moved)
        for place in places:
            for name, definition in inner.pop(place).items():
                definitions[moved[f"#/{place}/{name}"]] = definition
        call = {"name": {"const": tool["function"]["name"]}, arguments: inner}
        kinds.append(
            {
                "type": "object",
                "properties": call,
                "required": list(call),
                "additionalProperties": False,
            }
        )
    one = kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
    return {**one, "$defs": definitions} if definitions else one


def _redirected(value: Any, moved: Mapping[str, str]) -> Any:
    """A copy in which references point to the moved definitions."""
    if isinstance(value, list):
        return [_redirected(item, moved) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: f"#/$defs/{moved[item]}"
        if key == "$ref" and isinstance(item, str) and item in moved
        else _redirected(item, moved)
        for key, item in value.items()
    }
