"""Tool calls between marks, in the ways that families of models write them.

  <tool_call>        {"name": "f", "arguments": {"x": 1}}            (Hermes, Qwen, Granite 4)
                     <function=f><parameter=x>1</parameter></function>         (Qwen3-Coder)
                     f<arg_key>x</arg_key><arg_value>1</arg_value>                 (GLM 4.5)
  <minimax:tool_call>, <｜DSML｜function_calls>  <invoke name="f"><parameter name="x">1</parameter>
  <｜tool▁calls▁begin｜>  <｜tool▁call▁begin｜>f<｜tool▁sep｜>{"x": 1}            (DeepSeek)
  <|tool_calls_section_begin|>  functions.f:0<|tool_call_argument_begin|>{"x": 1}    (Kimi K2)
  <|tool_call_start|>, <function_calls>  [f(x=1)]                       (LFM2, OLMo 3)

and JSON between others. A value that is not JSON gets the type of its parameter: a string stays
one, even if it is all digits. A text is cut at its marks once, and no piece is read twice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quire.inputs.pythonic import read_pythonic_calls
from quire.outputs import ToolCall

# Function -> its parameters that take a string -> whether they may be null.
Offered = Mapping[str, Mapping[str, bool]]
Calls = list[ToolCall]

_BEFORE = re.compile(r"[\s,;]*")
_NULL = {"null", "None"}
_decode = json.JSONDecoder().raw_decode


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks around calls, and the function that reads their text (None: no call). A call
    without a closing mark ends at the next opening mark, or with the answer."""

    opening: str
    closing: str
    read: Callable[[str, Offered], Calls | None]


def offered_functions(tools: Sequence[Any] | None) -> Offered | None:
    """The functions that the schemas of tools offer; None if there are no tools. What is no list of
    tools is refused where a chat is written out."""
    if not isinstance(tools, Sequence) or not tools:
        return None
    functions = [tool.get("function", tool) for tool in tools if isinstance(tool, Mapping)]
    return {
        str(each.get("name")): dict(_texts(each.get("parameters")))
        for each in functions
        if isinstance(each, Mapping)
    }


def read_marked(text: str, marks: Iterable[Marks], offered: Offered) -> tuple[str, Calls]:
    """The text without the calls, and the calls."""
    by_opening = {each.opening: each for each in marks}
    found = list(re.finditer("|".join(map(re.escape, by_opening)), text))
    stops = [*(each.start() for each in found[1:]), len(text)]
    kept, calls = [text[: found[0].start()] if found else text], list[ToolCall]()
    for opening, stop in zip(found, stops, strict=True):
        each = by_opening[opening[0]]
        body, _, behind = text[opening.end() : stop].partition(each.closing)
        read = each.read(body, offered)
        kept.append(behind if read else text[opening.start() : stop])
        calls += read or []
    return "".join(kept), calls


def call_of(value: Any) -> ToolCall | None:
    """A call from its JSON; arguments may be JSON in a string."""
    if not isinstance(value, dict):
        return None
    inner = value.get("function", value)
    if not isinstance(inner, dict):
        return None
    name = inner.get("name", inner.get("tool_name"))
    arguments = inner.get("arguments", inner.get("parameters", {}))
    if isinstance(arguments, str):
        read = json_at(arguments, 0)
        arguments = read[0] if read is not None else None
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None
    return ToolCall(name, arguments)


def json_at(text: str, start: int) -> tuple[Any, int] | None:
    """The JSON value at this place, after white space, and where it ends; None if there is none."""
    while text[start : start + 1].isspace():
        start += 1
    try:
        return _decode(text, start)
    except (ValueError, RecursionError):
        return None


def _json_calls(body: str, offered: Offered) -> Calls | None:
    """Objects or lists of them, one after the other; text after them is dropped."""
    values, at = list[Any](), 0
    while (read := json_at(body, at)) is not None:
        values += read[0] if isinstance(read[0], list) else [read[0]]
        at = _BEFORE.match(body, read[1]).end()  # type: ignore[union-attr]  # matches ""
    calls = [call_of(value) for value in values]
    whole = [call for call in calls if call is not None]
    return whole if len(whole) == len(calls) else None


def _tagged(body: str, offered: Offered) -> Calls | None:
    """The text between <tool_call> and </tool_call>; its first character shows its form."""
    inside = body.strip()
    if inside.startswith("<function="):
        return _functions(inside, offered)
    if inside[:1] in ("{", "["):
        return _json_calls(inside, offered)
    name, *pairs = inside.split("<arg_key>")
    name = name.strip()
    if len(name.split()) != 1 or not (pairs or name in offered):
        return None
    arguments = {}
    for pair in pairs:
        key, middle, value = pair.partition("</arg_key>")
        value = value.strip().removeprefix("<arg_value>")
        if not middle:
            return None
        key = key.strip()
        arguments[key] = _value(value.partition("</arg_value>")[0], name, key, offered)
    return [ToolCall(name, arguments)]


def _functions(inside: str, offered: Offered) -> Calls | None:
    calls = []
    for part in _parts(inside, "<function=", "</function>"):
        name, sign, rest = part.partition(">")
        if not sign or not name.strip():
            return None
        name = name.strip()
        arguments = {}
        for given in _parts(rest, "<parameter=", "</parameter>"):
            key, sign, value = given.partition(">")
            if not sign:
                return None
            value = value.removeprefix("\n").removesuffix("\n")
            arguments[key.strip()] = _value(value, name, key.strip(), offered)
        calls.append(ToolCall(name, arguments))
    return calls


def _invokes(body: str, offered: Offered) -> Calls | None:
    calls = []
    for part in _parts(body.replace("｜DSML｜", ""), "<invoke ", "</invoke>"):
        name, rest = _attribute(part)
        if not name:
            return None
        arguments = {}
        for given in _parts(rest, "<parameter ", "</parameter>"):
            key, value = _attribute(given)
            is_text = given.partition(">")[0].endswith('string="true"')
            value = value.removeprefix("\n").removesuffix("\n")
            arguments[key] = value if is_text else _value(value, name, key, offered)
        calls.append(ToolCall(name, arguments))
    return calls or None


def _deepseek(body: str, offered: Offered) -> Calls | None:
    calls = []
    for part in _parts(body, "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"):
        name, sign, rest = part.partition("<｜tool▁sep｜>")
        if name.strip() == "function":  # V3 and R1 write the kind first, and a block of code
            name, _, rest = rest.lstrip().partition("\n")
            rest = rest.partition("```json")[2]
        calls.append(_call_from(name, rest) if sign else None)
    return _all_of(calls)


def _kimi(body: str, offered: Offered) -> Calls | None:
    calls = []
    for part in _parts(body, "<|tool_call_begin|>", "<|tool_call_end|>"):
        id, sign, rest = part.partition("<|tool_call_argument_begin|>")
        name = id.strip().removeprefix("functions.").partition(":")[0]
        calls.append(_call_from(name, rest) if sign else None)
    return _all_of(calls)


def _pythonic(body: str, offered: Offered) -> Calls | None:
    """A list of calls, or a call in each line."""
    inside = body.strip()
    if not inside.startswith("["):
        inside = f"[{','.join(line for line in inside.splitlines() if line.strip())}]"
    found = read_pythonic_calls(inside)
    return None if found is None else [ToolCall(*call) for call in found]


def _call_from(name: str, arguments: str) -> ToolCall | None:
    read = json_at(arguments, 0)
    return None if read is None else call_of({"name": name.strip(), "arguments": read[0]})


def _all_of(calls: list[ToolCall | None]) -> Calls | None:
    whole = [call for call in calls if call is not None]
    return whole if whole and len(whole) == len(calls) else None


def _parts(text: str, opening: str, closing: str) -> Iterator[str]:
    for part in text.split(opening)[1:]:
        yield part.partition(closing)[0]


def _attribute(part: str) -> tuple[str, str]:
    """'name="f" string="true">rest' is ("f", "rest")."""
    head, _, rest = part.partition(">")
    return head.partition('name="')[2].partition('"')[0], rest


def _value(raw: str, function: str, parameter: str, offered: Offered) -> Any:
    """A value written without quotes: JSON, unless its parameter is a string or it is not valid."""
    texts = offered.get(function, {})
    if parameter in texts:
        return None if texts[parameter] and raw.strip() in _NULL else raw
    read = json_at(raw, 0)
    is_whole = read is not None and not raw[read[1] :].strip() and not isinstance(read[0], str)
    return read[0] if read is not None and is_whole else raw


def _texts(schema: Any) -> Iterator[tuple[str, bool]]:
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    for name, one in properties.items() if isinstance(properties, Mapping) else ():
        types = set(_types(one))
        if "string" in types:
            yield str(name), "null" in types


def _types(schema: Any) -> Iterator[str]:
    """The types of a schema and of its options; a value that is no schema has none."""
    options = [schema]
    if isinstance(schema, Mapping):
        options += [one for key in ("anyOf", "oneOf") for one in _list(schema.get(key))]
    for one in options:
        if isinstance(one, Mapping):
            said = one.get("type", "string" if _is_of_texts(one.get("enum")) else None)
            yield from (each for each in (said, *_list(said)) if isinstance(each, str))


def _is_of_texts(values: Any) -> bool:
    return any(isinstance(value, str) for value in _list(values))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


_ROUND = "<|tool_call|>", "<|/tool_call|>"  # Granite 3 does not close them, Phi-4 does
# By the formats that parsers.py names.
FORMATS: dict[str, tuple[Marks, ...]] = {
    "hermes": (Marks("<tool_call>", "</tool_call>", _tagged),),
    "seed": (Marks("<seed:tool_call>", "</seed:tool_call>", _tagged),),
    "longcat": (Marks("<longcat_tool_call>", "</longcat_tool_call>", _tagged),),
    "granite": (
        Marks(*_ROUND, _json_calls),
        Marks("<function_call>", "</function_call>", _json_calls),
    ),
    "list": (Marks("<tool_calls>", "</tool_calls>", _json_calls),),
    "internlm": (Marks("<|action_start|><|plugin|>", "<|action_end|>", _json_calls),),
    "cohere": (Marks("<|START_ACTION|>", "<|END_ACTION|>", _json_calls),),
    "invokes": (
        Marks("<minimax:tool_call>", "</minimax:tool_call>", _invokes),
        Marks("<｜DSML｜function_calls>", "</｜DSML｜function_calls>", _invokes),
    ),
    "deepseek": (Marks("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", _deepseek),),
    "kimi": (Marks("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", _kimi),),
    "pythonic": (
        Marks("<|python_start|>", "<|python_end|>", _pythonic),
        Marks("<function_calls>", "</function_calls>", _pythonic),
        Marks("<|tool_call_start|>", "<|tool_call_end|>", _pythonic),
    ),
}
MARKS = {each.opening: each for some in FORMATS.values() for each in some}
