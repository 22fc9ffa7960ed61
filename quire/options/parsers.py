"""Names of parsers as scripts write them, and the formats of ours that they mean."""

from __future__ import annotations

from typing import Any

from quire.options.checks import choice

# The tag that opens the reasoning; with "" it is found in the text.
_REASONING = {
    "": "",
    **dict.fromkeys(("deepseek_r1", "deepseek_v3", "ernie45", "glm45", "holo2"), "<think>"),
    **dict.fromkeys(("kimi_k2", "minimax_m2", "nemotron_v3", "olmo3"), "<think>"),
    **dict.fromkeys(("qwen3", "step3", "step3p5"), "<think>"),
    "mistral": "[THINK]",
    "seed_oss": "<seed:think>",
    "cohere_command3": "<|START_THINKING|>",
    "openai_gptoss": "<|channel|>",
}
# The formats of tool calls, as named in inputs/tool_calls.py and inputs/marked_calls.py.
_TOOL_CALLS = {
    "auto": "auto",
    "none": "none",
    "openai": "channels",
    "mistral": "mistral",
    "internlm": "internlm",
    **dict.fromkeys(("hermes", "qwen3_coder", "qwen3_xml", "glm45", "glm47", "ernie45"), "hermes"),
    **dict.fromkeys(("llama3_json", "llama4_json", "xlam", "phi4_mini_json"), "llama3"),
    **dict.fromkeys(("pythonic", "llama4_pythonic", "olmo3"), "pythonic"),
    **dict.fromkeys(("deepseek_v3", "deepseek_v31"), "deepseek"),
    **dict.fromkeys(("deepseek_v32", "minimax_m2"), "invokes"),
    **dict.fromkeys(("granite", "granite-20b-fc"), "granite"),
    **dict.fromkeys(("jamba", "hunyuan_a13b", "minimax"), "list"),
    "kimi_k2": "kimi",
    "longcat": "longcat",
    "seed_oss": "seed",
}
_OTHER_REASONING = ("granite", "hunyuan_a13b", "identity")
_OTHER_TOOL_CALLS = ("gigachat3", "step3")
_known_reasoning = choice(
    *_REASONING, others=_OTHER_REASONING, instead="Leave it out: tags are found in the answer."
)
_known_tool_calls = choice(
    *_TOOL_CALLS, others=_OTHER_TOOL_CALLS, instead="Read the calls off the answer's text."
)


def reasoning_parser(name: str, value: Any) -> str:
    """The tag that opens the reasoning; "" for whichever the answer begins with."""
    return _REASONING[_known_reasoning(name, value)]


def tool_call_parser(name: str, value: Any) -> str:
    """One of the formats of inputs/tool_calls.py."""
    return _TOOL_CALLS[_known_tool_calls(name, value)]
