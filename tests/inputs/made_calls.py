"""Answers with tool calls as families of models write them, each with what it says."""

from __future__ import annotations

from typing import Any

from quire.outputs import ToolCall

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "parameters": {
                "type": "object",
                "properties": {
                    "zip": {"type": "string"},
                    "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                    "unit": {"enum": ["C", "F"]},
                    "days": {"type": "integer"},
                    "tags": {"type": "array", "items": {"type": "string"}},
                },
            },
        },
    },
    {"type": "function", "function": {"name": "now"}},
]
GIVEN = {"zip": "01234", "note": None, "unit": "C", "days": 3, "tags": ["a", "ü"]}
LOOK, NOW = ToolCall("look", GIVEN), ToolCall("now", {})
JSON = '{"zip": "01234", "note": null, "unit": "C", "days": 3, "tags": ["a", "ü"]}'
PYTHONIC = "look(zip='01234', note=None, unit=\"C\", days=3, tags=['a', 'ü'])"
WRITTEN = {"zip": "01234", "note": "null", "unit": "C", "days": "3", "tags": '["a", "ü"]'}


def _named(name: str) -> str:
    return f'{{"name": "{name}", "arguments": {JSON if name == "look" else "{}"}}}'


def _xml(opening: str, closing: str) -> str:
    return "".join(opening.format(k=key) + raw + closing for key, raw in WRITTEN.items())


_LINES = _xml("<parameter={k}>\n", "\n</parameter>\n")
_FUNCTIONS = (
    f"<function=look>\n{_LINES}</function>\n",
    "<function=now>\n</function>\n",
)
_ARG = _xml("<arg_key>{k}</arg_key><arg_value>", "</arg_value>")
_ARGS = _xml("<arg_key>{k}</arg_key>\n<arg_value>", "</arg_value>\n")
_PARAMETERS = _xml('<parameter name="{k}">', "</parameter>\n")
_DSML = "".join(
    f'<｜DSML｜parameter name="{key}" string="{"true" if key in ("zip", "unit") else "false"}">'
    f"{raw}</｜DSML｜parameter>\n"
    for key, raw in WRITTEN.items()
)
BOTH = f"[{_named('look')}, {_named('now')}]"

# By what `tool_call_parser` calls it: both calls in one answer.
ANSWERS = {
    "hermes": f"<tool_call>\n{_named('look')}\n</tool_call>\n<tool_call>\n{_named('now')}\n"
    "</tool_call>",
    "qwen3_coder": "".join(f"<tool_call>\n{one}</tool_call>\n" for one in _FUNCTIONS),
    "glm45": f"<tool_call>look\n{_ARGS}</tool_call>\n<tool_call>now\n</tool_call>",
    "glm47": f"<tool_call>look{_ARG}</tool_call><tool_call>now</tool_call>",
    "seed_oss": f"<seed:tool_call>\n{''.join(_FUNCTIONS)}</seed:tool_call>",
    "minimax_m2": f'<minimax:tool_call>\n<invoke name="look">\n{_PARAMETERS}</invoke>\n'
    '<invoke name="now">\n</invoke>\n</minimax:tool_call>',
    "deepseek_v32": f'<｜DSML｜function_calls>\n<｜DSML｜invoke name="look">\n{_DSML}'
    '</｜DSML｜invoke>\n<｜DSML｜invoke name="now">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
    "deepseek_v3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>look\n"
    f"```json\n{JSON}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n"
    "```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "deepseek_v31": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>look<｜tool▁sep｜>"
    f"{JSON}<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{{}}<｜tool▁call▁end｜>"
    "<｜tool▁calls▁end｜>",
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.look:0"
    f"<|tool_call_argument_begin|>{JSON}<|tool_call_end|><|tool_call_begin|>functions.now:1"
    "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
    "granite": f"<|tool_call|>{BOTH}",
    "granite-20b-fc": f"<function_call> {_named('look')} <function_call> {_named('now')}",
    "phi4_mini_json": f"functools{BOTH}",
    "xlam": BOTH,
    "llama3_json": f"<|python_tag|>{_named('look')}; {_named('now')}",
    "jamba": f"<tool_calls>{BOTH}</tool_calls>",
    "minimax": f"<tool_calls>\n{_named('look')}\n{_named('now')}\n</tool_calls>",
    "internlm": f"<|action_start|><|plugin|>\n{_named('look')}<|action_end|>\n"
    f"<|action_start|><|plugin|>{_named('now')}<|action_end|>",
    "longcat": f"<longcat_tool_call>{_named('look')}</longcat_tool_call>"
    f"<longcat_tool_call>{_named('now')}</longcat_tool_call>",
    "mistral": f"[TOOL_CALLS]look[CALL_ID]aB3dE6gH9[ARGS]{JSON}[TOOL_CALLS]now[ARGS]{{}}",
    "olmo3": f"<function_calls>\n{PYTHONIC}\nnow()\n</function_calls>",
    "pythonic": f"[{PYTHONIC}, now()]",
    "llama4_pythonic": f"<|python_start|>[{PYTHONIC}, now()]<|python_end|>",
}
# Found by their marks; vLLM has no name for them, or another format of the same name.
UNNAMED = {
    "cohere": f"<|START_ACTION|>[\n{_named('look').replace('name', 'tool_name')},\n"
    f"{_named('now').replace('name', 'tool_name')}\n]<|END_ACTION|>",
    "lfm2": f"<|tool_call_start|>[{PYTHONIC}, now()]<|tool_call_end|>",
    "phi4": f"<|tool_call|>{BOTH}<|/tool_call|>",
}
