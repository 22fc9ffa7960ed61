"""The sampling parameters of a body, as plain data; the engine checks their values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.openai_api.errors import ApiError, bad
from quire.params.rules import show

MOST_ANSWERS, MOST_LOGPROBS = 128, 20
# The most entries of lists that are checked for each token drawn, or for each vocabulary id.
_MOST = {
    "stop": 64,
    "bad_words": 1024,
    "stop_token_ids": 1024,
    "logit_bias": 1024,
    "allowed_token_ids": 1 << 18,
}
_MOST_CHARACTERS = 1 << 16  # of all texts of such a list together
_MOST_JUDGED = 1 << 12  # characters of all choices that are scored whole
USUAL_COMPLETION = 16  # default max_tokens of a completion
# Parameters that mean the same here, under the same name.
_SAME = (
    *("temperature", "top_p", "n", "stop", "seed", "presence_penalty", "frequency_penalty"),
    *("top_k", "min_p", "repetition_penalty", "min_tokens", "ignore_eos", "stop_token_ids"),
    "thinking_token_budget",
    *("skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output"),
    *("bad_words", "allowed_token_ids", "truncate_prompt_tokens", "logit_bias"),
)
_GUIDED = {f"guided_{kind}": kind for kind in ("json", "regex", "choice", "grammar")}
# The engine's names for fields of a prompt, and for constraints, in its errors.
_PROMPTS = ("prompt", "prompt_token_ids", "multi_modal_data", "allowed_local_media_path")
_CONSTRAINTS = (*_GUIDED.values(), "json_object", "structural_tag")


def limited(name: str, value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise bad(f"{name} is from {low} to {high}, not {show(value)}", param=name)
    return value


def sampling_fields(given: Mapping[str, Any], *, is_chat: bool) -> dict[str, Any]:
    """All sampling parameters but logprobs, which chats and completions write differently."""
    params = {name: given[name] for name in _SAME if name in given}
    if params.get("top_p") == 0:  # OpenAI's range begins there: the likeliest token alone
        params["top_p"] = 1e-9
    answers = limited("n", params.get("n", 1), 1, MOST_ANSWERS)
    if (written := given.get("best_of", 1)) not in (1, answers):  # 1: what clients say by default
        way_out = "ask for that n with logprobs, and keep the likeliest"
        raise bad(f"best_of is n ({answers}), not {show(written)}; {way_out}", param="best_of")
    for name, most in _MOST.items():
        value = params.get(name, ())
        value = (value,) if isinstance(value, str) else value
        if len(value) > most:
            raise bad(f"{name} has at most {most:,} entries, not {len(value):,}", param=name)
        size = sum(len(text) for text in value if isinstance(text, str))
        if size > _MOST_CHARACTERS:
            raise bad(f"{name} has at most {_MOST_CHARACTERS:,} characters", param=name)
    # A chat answers as long as there is room, a completion says sixteen tokens.
    usual = None if is_chat else USUAL_COMPLETION
    params["max_tokens"] = given.get("max_completion_tokens", given.get("max_tokens", usual))
    if (wanted := _constraint(given)) is not None:
        params["structured_outputs"] = _bounded(wanted)
    return params


# Fields that a beam search ignores, with the values that are accepted beside it.
_NOT_SEARCHED: dict[str, Any] = {
    **dict.fromkeys(("stream", "logprobs", "presence_penalty", "frequency_penalty"), 0),
    **dict.fromkeys(("stop", "stop_token_ids", "bad_words", "allowed_token_ids"), []),
    "prompt_logprobs": None,
    "min_tokens": 0,
    "repetition_penalty": 1,
    "thinking_token_budget": None,
    "logit_bias": {},
}


def beam_of(given: Mapping[str, Any]) -> dict[str, Any] | None:
    """The beam search that a body asks for, or None."""
    if not given.get("use_beam_search"):
        if "length_penalty" in given:
            raise bad("length_penalty needs use_beam_search to be true", param="length_penalty")
        return None
    for name, nothing in _NOT_SEARCHED.items():
        if given.get(name, nothing) not in (nothing, False):
            raise bad(f"use_beam_search and {name} exclude each other", param=name)
    return {name: given[name] for name in ("length_penalty",) if name in given}


def undrawn(params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters without those for random draws, which a beam search does not make."""
    drawing = ("temperature", "top_p", "top_k", "min_p", "seed")
    return {name: value for name, value in params.items() if name not in drawing}


def _constraint(given: Mapping[str, Any]) -> dict[str, Any] | None:
    """The one constraint on the form of the text."""
    found = {name: {kind: given[name]} for name, kind in _GUIDED.items() if name in given}
    if "structured_outputs" in given:
        found["structured_outputs"] = given["structured_outputs"]
    if (wanted := format_constraint(given.get("response_format"), "response_format")) is not None:
        found["response_format"] = wanted
    if len(found) > 1:
        first, second, *_ = found
        raise bad(f"{first} and {second} exclude each other; give one of them", param=second)
    return next(iter(found.values()), None)


def _bounded(wanted: dict[str, Any]) -> dict[str, Any]:
    """Have long lists of choices drawn token by token: scoring each as a whole takes as long as a
    prompt with all choices, for one short answer."""
    texts = wanted.get("choice")
    if not isinstance(texts, list) or sum(len(str(text)) for text in texts) <= _MOST_JUDGED:
        return wanted
    if wanted.get("choice_mode") == "whole":
        way_out = 'leave choice_mode out, or say "tokens"'
        raise bad(
            f"choices are judged whole up to {_MOST_JUDGED:,} characters; {way_out}",
            param="structured_outputs.choice_mode",
        )
    return {**wanted, "choice_mode": "tokens"}


def prompt_fields(name: str) -> dict[str, str]:
    """The names that errors use for a prompt in the field `name` of a body."""
    return dict.fromkeys(_PROMPTS, name)


def constraint_fields(given: Mapping[str, Any]) -> dict[str, str]:
    """The names that errors use for the constraint on the form of the text."""
    own = [name for name in _GUIDED if name in given]
    own += [f"structured_outputs.{kind}" for kind in given.get("structured_outputs", ())]
    if (form := given.get("response_format")) is not None:
        own.append(f"response_format{'.json_schema' if 'json_schema' in form else ''}.schema")
    return constrained_by(own[0]) if len(own) == 1 else {}


def constrained_by(field: str) -> dict[str, str]:
    return dict.fromkeys(_CONSTRAINTS, field)


def format_constraint(given: Any, param: str) -> dict[str, Any] | None:
    """A response format as a structured output; None for plain text."""
    if given is None:
        return None
    kind = given.get("type")
    if kind == "text":
        return None
    # Responses have the schema in the format itself, and so have some clients of other servers,
    # which call it a json_object.
    holder = given.get("json_schema", given)
    schema = holder.get("schema") if isinstance(holder, dict) else None
    if kind == "json_object" and holder is given and not schema:
        return {"json_object": True}
    if kind in ("json_object", "json_schema") and isinstance(schema, dict):
        return {"json": schema}
    raise _no_format(param)


def _no_format(param: str) -> ApiError:
    return bad(f"{param} is of type text, json_object or json_schema with its schema", param=param)
