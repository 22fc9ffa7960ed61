"""Makes rows for the engine from a body: plain data, one row for each prompt."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from quire.openai_api.errors import bad, not_found
from quire.openai_api.field import checked_fields
from quire.openai_api.fields import CHAT, COMPLETIONS, TABLE
from quire.openai_api.params import (
    MOST_LOGPROBS,
    beam_of,
    constrained_by,
    constraint_fields,
    limited,
    prompt_fields,
    sampling_fields,
    undrawn,
)
from quire.openai_api.tool_choice import ToolUse, beside_format, read_tools
from quire.params.rules import show

ENDPOINTS = (CHAT, COMPLETIONS)
MOST_SAMPLES = 1024  # prompts times answers of one body
_STREAM_OPTIONS = ("include_usage", "continuous_usage_stats", "include_obfuscation")
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Asked:
    """A body that was read. `rows` go to the engine:

    {"prompt": text or token ids} or {"messages", "chat": how to render them}, and "params";
    "stream" to get new tokens at each step, "tools" to look for calls, "prompt_back" to get the
    prompt with the output, "priority", "salt", "add_special_tokens", and "model" if it is not
    the main name.
    """

    endpoint: str
    model: str | None
    rows: tuple[Row, ...]
    n: int = 1
    stream: bool = False
    usage_last: bool = False  # a stream ends with a chunk that holds the usage
    usage_always: bool = False  # and every other chunk has it too
    logprobs: bool = False
    echo: bool = False
    only_echo: bool = False  # only the prompt is wanted
    is_batch: bool = False  # the body asked for the batch lane
    token_ids: bool = False
    prompt_logprobs: bool = False
    reasoning: bool = True
    tools: ToolUse = ToolUse()
    # The engine's name of a field -> the name in the body: "json" -> "guided_json".
    fields: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_chat(self) -> bool:
        return self.endpoint != COMPLETIONS

    @property
    def num_samples(self) -> int:
        return self.n * len(self.rows)


def read_body(endpoint: str, body: Any, names: Collection[str] | None = None) -> Asked:
    """Read a body; raises ApiError. `names` are those of the served model; with None the body may
    have any name, or none."""
    given = read_fields(endpoint, body, names)
    asked = read_chat(given) if endpoint == CHAT else _read_completion(given)
    if asked.num_samples > MOST_SAMPLES:
        raise bad(
            f"n times the prompts is at most {MOST_SAMPLES}, not {asked.num_samples}", param="n"
        )
    name_model(asked.rows, asked.model, names)
    return asked


def read_fields(endpoint: str, body: Any, names: Collection[str] | None) -> dict[str, Any]:
    """The checked fields of a body that asks for a model of these names; see read_body."""
    given = checked_fields(TABLE[endpoint], body, elsewhere=TABLE)
    check_model(given.get("model"), names)
    return given


def common_to(rows: Iterable[Row], given: Mapping[str, Any]) -> bool:
    """Add to the rows the fields that every body may have; True if it asks for the batch lane."""
    for row in rows:
        if "cache_salt" in given:
            row["salt"] = given["cache_salt"]
        if given.get("priority", 0) > 0:
            row["priority"] = given["priority"]
    return given.get("service_tier") == "flex" or given.get("priority", 0) > 0


def name_model(rows: Iterable[Row], model: str | None, names: Collection[str] | None) -> None:
    """Add the model's name to the rows if it is not the first name: it may be a LoRA adapter."""
    if model is not None and names is not None and model != next(iter(names), model):
        for row in rows:
            row["model"] = model


def check_model(model: str | None, names: Collection[str] | None) -> None:
    if names is None:
        return
    if model is None:
        raise bad(f"the body has no model; ask for {', '.join(sorted(names))}", param="model")
    if model not in names:
        raise not_found(
            f"the model {show(model)} is not served here; ask for {', '.join(sorted(names))}",
            param="model",
            code="model_not_found",
        )


def read_chat(given: Mapping[str, Any]) -> Asked:
    """The request in the checked fields of a chat."""
    if not given["messages"]:
        raise bad("messages has at least one message", param="messages")
    tools = read_tools(given)
    texts = given
    if tools.schema is not None:  # the answer is a forced call, so a response format is ignored
        texts = {name: value for name, value in given.items() if name != "response_format"}
    params = sampling_fields(texts, is_chat=True)
    fields = prompt_fields("messages") | constraint_fields(texts)
    if tools.schema is not None:
        _refuse_two_constraints(params)
        params["structured_outputs"] = {"json": dict(tools.schema)}
        fields |= constrained_by(tools.field)
    elif tools.offered and "structured_outputs" in params:
        tools, params["structured_outputs"] = beside_format(tools, params["structured_outputs"])
        fields |= constrained_by(tools.field)
    if "max_completion_tokens" in given:
        fields["max_tokens"] = "max_completion_tokens"
    wants = bool(given.get("logprobs"))
    top = limited("top_logprobs", given.get("top_logprobs", 0), 0, MOST_LOGPROBS)
    if top and not wants:
        raise bad("top_logprobs needs logprobs to be true", param="top_logprobs")
    if wants:
        params["logprobs"] = top
    messages = [_as_system(message) for message in given["messages"]]
    row: Row = {"messages": messages, "chat": _rendering(given, tools), "params": params}
    if tools.offered and not tools.constrained:
        row["tools"] = True
    return _asked(CHAT, given, [row], tools=tools, logprobs=wants, fields=fields)


def _as_system(message: Any) -> Any:
    """The message with the role "developer" as "system", the only name that templates know."""
    if isinstance(message, Mapping) and message.get("role") == "developer":
        return {**message, "role": "system"}
    return message


def _refuse_two_constraints(params: Mapping[str, Any]) -> None:
    if "structured_outputs" in params:
        raise bad(
            "a forced call and a format for the whole text exclude each other: a call is not in "
            "that format. Leave one of them out, or set tool_choice to auto",
            param="tool_choice",
        )


def _rendering(given: Mapping[str, Any], tools: ToolUse) -> dict[str, Any]:
    """The options for rendering the messages."""
    names = ("documents", "continue_final_message", "add_generation_prompt")
    options = {name: given[name] for name in names if name in given}
    if options.get("continue_final_message") and "add_generation_prompt" not in options:
        options["add_generation_prompt"] = False
    if tools.offered:
        options["tools"] = list(tools.offered)
    variables = dict(given.get("chat_template_kwargs", {}))
    if (effort := given.get("reasoning_effort")) is not None:
        variables.setdefault("reasoning_effort", effort)
        if effort == "none":
            variables.setdefault("enable_thinking", False)
    if variables:
        options["chat_template_kwargs"] = variables
    return options


def _read_completion(given: Mapping[str, Any]) -> Asked:
    params = sampling_fields(given, is_chat=False)
    echo, only_echo = bool(given.get("echo")), False
    if params["max_tokens"] == 0 and echo:
        params["max_tokens"], only_echo = 1, True  # one token is drawn, and not shown
    wants = given.get("logprobs")
    wants = 1 if wants is True else None if wants is False else wants
    if wants is not None:
        params["logprobs"] = limited("logprobs", wants, 0, MOST_LOGPROBS)
        if echo:
            params.setdefault("prompt_logprobs", params["logprobs"])
    rows = []
    for prompt in prompts_of(given["prompt"], "prompt", MOST_SAMPLES):
        row: Row = {"prompt": prompt, "params": params}
        if "add_special_tokens" in given:
            row["add_special_tokens"] = given["add_special_tokens"]
        if echo:
            row["prompt_back"] = True
        rows.append(row)
    return _asked(
        *(COMPLETIONS, given, rows),
        echo=echo,
        only_echo=only_echo,
        logprobs=wants is not None,
        fields=prompt_fields("prompt") | constraint_fields(given),
    )


def prompts_of(prompt: Any, name: str, most: int) -> list[str | list[int]]:
    """The prompts in the field `name` of a body: text, token ids, or a list of either."""
    if isinstance(prompt, str) or _are_ids(prompt):
        return [prompt]
    several = prompt if isinstance(prompt, list) else []
    if len(several) > most:
        raise bad(f"{name} has at most {most:,} texts, not {len(several):,}", param=name)
    if several and (
        all(isinstance(one, str) for one in several) or all(_are_ids(one) for one in several)
    ):
        return several
    raise bad(f"{name} is text, a list of token ids, or a list of either", param=name)


def _are_ids(prompt: Any) -> bool:
    return isinstance(prompt, list) and bool(prompt) and all(type(one) is int for one in prompt)


def _asked(endpoint: str, given: Mapping[str, Any], rows: list[Row], **more: Any) -> Asked:
    stream, options = bool(given.get("stream")), given.get("stream_options", {})
    for name in options:
        if name not in _STREAM_OPTIONS:
            raise bad(
                f"stream_options has no {show(name)}; known: {', '.join(_STREAM_OPTIONS)}",
                param="stream_options",
            )
    if options and not stream:
        raise bad("stream_options needs stream to be true", param="stream_options")
    prompt_logprobs = given.get("prompt_logprobs")
    if prompt_logprobs is not None:
        if stream:
            raise bad("prompt_logprobs do not come in a stream", param="prompt_logprobs")
        limited("prompt_logprobs", prompt_logprobs, 0, MOST_LOGPROBS)
    token_ids, beam = bool(given.get("return_token_ids")), beam_of(given)
    for row in rows:
        if beam is not None:
            row["beam"], row["params"] = beam, undrawn(row["params"])
        if stream:
            row["stream"] = True
        if token_ids:
            row["prompt_back"] = True
        if prompt_logprobs is not None:
            row["params"]["prompt_logprobs"] = prompt_logprobs
    return Asked(
        endpoint,
        given.get("model"),
        tuple(rows),
        n=given.get("n", 1),
        stream=stream,
        usage_last=bool(options.get("include_usage")),
        usage_always=bool(options.get("continuous_usage_stats")),
        is_batch=common_to(rows, given),
        token_ids=token_ids,
        prompt_logprobs=prompt_logprobs is not None,
        reasoning=given.get("include_reasoning", True),
        **more,
    )
