"""OpenAI batch files as a job: what a line asks for, and what is answered.

A line is {"custom_id", "method": "POST", "url", "body"}, for /v1/chat/completions and
/v1/completions. The `model` of a body is echoed; the job's own model answers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from quire.errors import CorruptJob
from quire.inputs.tool_calls import parse_tool_calls
from quire.jobs.input.rows import BadRow
from quire.jobs.output.joined import joined
from quire.jobs.store.durable import replacing
from quire.jobs.store.keys import row_seed
from quire.jobs.store.manifest import Manifest
from quire.jobs.store.record import ResultRecord
from quire.jobs.store.segments import ResultIndex
from quire.params.rules import show

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
# Parameters that mean the same here, under the same name; the engine checks their values.
_SAME = (
    *("temperature", "top_p", "n", "stop", "seed", "presence_penalty", "frequency_penalty"),
    *("top_k", "min_p", "repetition_penalty", "min_tokens", "ignore_eos", "stop_token_ids"),
    *("skip_special_tokens", "include_stop_str_in_output", "structured_outputs", "bad_words"),
    *("allowed_token_ids", "truncate_prompt_tokens", "logit_bias"),
)
# Fields about accounts and transport, which change no answer, and what they are.
_MOOT: dict[str, type] = {
    "model": str,
    "user": str,
    "service_tier": str,
    "safety_identifier": str,
    "prompt_cache_key": str,
    "store": bool,
    "metadata": Mapping,
    "stream_options": Mapping,
}
# Fields that are read here, and what they are: of a chat, of a text, of both.
_OF_CHATS: dict[str, type] = {
    "messages": list,
    "tools": list,
    "documents": list,
    "chat_template_kwargs": Mapping,
    "parallel_tool_calls": bool,
    "add_generation_prompt": bool,
    "continue_final_message": bool,
}
_OF_TEXTS: dict[str, type] = {"prompt": object}
_OF_BOTH: dict[str, type] = {
    **dict.fromkeys((*_SAME, "max_tokens", "max_completion_tokens"), object),
    "response_format": Mapping,
}
# Fields that ask for nothing when they have one of these values, or are null.
_HARMLESS: dict[str, tuple[Any, ...]] = {
    "stream": (False,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "echo": (False,),
    "suffix": ("",),
    "best_of": (1,),
    "tool_choice": ("auto", "none"),
    "modalities": (["text"],),
}
_KINDS = {str: "text", bool: "true or false", list: "a list", Mapping: "an object"}


class BatchAsking:
    """Makes a request of a line; raises BadRow with the reason for one that makes none."""

    def ask(self, row: Mapping[str, Any]) -> dict[str, Any]:
        url, body = row.get("url"), row.get("body")
        if row.get("method", "POST") != "POST":
            raise _bad(f"the method is POST, not {show(row['method'])}")
        if not isinstance(body, Mapping):
            raise _bad("the line has no body")
        if url not in (CHAT, COMPLETIONS):
            raise _bad(f"the url is {CHAT} or {COMPLETIONS}, not {show(url)}")
        is_chat = url == CHAT
        _check_fields(body, is_chat=is_chat)
        given = {name: value for name, value in body.items() if value is not None}
        asked = _chat(given) if is_chat else _completion(given)
        return {**asked, "params": _params(given, is_chat=is_chat)}


def _check_fields(body: Mapping[str, Any], *, is_chat: bool) -> None:
    """Every field is honoured, known to change nothing, or refused; none is left out in silence.
    Null is what a field is that is not there."""
    known = {**_MOOT, **_OF_BOTH, **(_OF_CHATS if is_chat else _OF_TEXTS)}
    for name, value in body.items():
        if value is None:
            continue
        if name in _HARMLESS:
            if not any(type(value) is type(one) and value == one for one in _HARMLESS[name]):
                raise _not_built(f"{name[:100]} is not built for batch files; leave it out")
        elif name not in known:
            raise _not_built(f"{name[:100]} is not built for batch files; leave it out")
        elif not isinstance(value, known[name]):
            raise _bad(f"{name} is {_KINDS[known[name]]}, not {show(value)}")
    if body.get("parallel_tool_calls") is False and body.get("tools"):
        raise _not_built("parallel_tool_calls=false is not built for batch files; leave it out")


def _chat(body: Mapping[str, Any]) -> dict[str, Any]:
    if "messages" not in body:
        raise _bad("the body has no list of messages")
    names = ("tools", "documents", "chat_template_kwargs", "continue_final_message")
    options = {name: body[name] for name in (*names, "add_generation_prompt") if name in body}
    if body.get("tool_choice") == "none":
        options.pop("tools", None)
    return {"messages": body["messages"], "chat": options}


def _completion(body: Mapping[str, Any]) -> dict[str, Any]:
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, list) and all(type(token) is int for token in prompt):
        return {"prompt": {"prompt_token_ids": prompt}}
    if not isinstance(prompt, str):
        raise _bad("the body's prompt is one text or one list of token ids; make a line of each")
    return {"prompt": prompt}


def _params(body: Mapping[str, Any], *, is_chat: bool) -> dict[str, Any]:
    """The sampling parameters of a body."""
    params = {name: body[name] for name in _SAME if name in body}
    limits = [body[name] for name in ("max_completion_tokens", "max_tokens") if name in body]
    if len(limits) == 2 and limits[0] != limits[1]:
        raise _bad("max_tokens and max_completion_tokens say different things; give one of them")
    # As there: a chat answers as long as there is room, a completion says sixteen tokens.
    params["max_tokens"] = limits[0] if limits else None if is_chat else 16
    if (wanted := _response_format(body.get("response_format"))) is not None:
        if "structured_outputs" in params:
            raise _bad("response_format and structured_outputs exclude each other")
        params["structured_outputs"] = wanted
    return params


def _response_format(given: Any) -> dict[str, Any] | None:
    if given is None or given == {"type": "text"}:
        return None
    if isinstance(given, Mapping) and given.get("type") == "json_object":
        return {"json_object": True}
    if isinstance(given, Mapping) and given.get("type") == "json_schema":
        schema = given.get("json_schema")
        if isinstance(schema, Mapping) and isinstance(schema.get("schema"), Mapping):
            return {"json": schema["schema"]}
    raise _bad("response_format is of type text, json_object or json_schema with its schema")


def _bad(why: str) -> BadRow:
    return BadRow("invalid_request", why)


def _not_built(why: str) -> BadRow:
    return BadRow("not_supported", why)


def errors_path(output: Path) -> Path:
    """Where the failed lines go: out.jsonl -> out.errors.jsonl."""
    return output.with_name(f"{output.stem}.errors{output.suffix}")


def write_batch(job_dir: Path, manifest: Manifest, index: ResultIndex, num_rows: int) -> None:
    """The answered lines, and beside them the failed ones, both in the order of the input."""
    output, written = Path(manifest.output), 0
    created = int(datetime.fromisoformat(manifest.created).timestamp())
    failed_lines = errors_path(output)
    with (
        replacing(failed_lines, shared=True) as errors,
        replacing(output, shared=True) as answers,
    ):
        for row, record in joined(job_dir, manifest, index):
            if record.failed:
                errors.write(_line(_failed(row, record)))
            else:
                answers.write(_line(_answered(row, record, manifest, created)))
            written += 1
        if written != num_rows:
            raise CorruptJob(
                f"the output would have {written} lines, and the job has {num_rows}; it was not "
                "written. Run the same command: what is missing is computed again."
            )


def _line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def _failed(row: Mapping[str, Any], record: ResultRecord) -> dict[str, Any]:
    custom_id = row.get("custom_id")
    return {
        "id": f"batch_req_{_number(record)}",
        "custom_id": custom_id if isinstance(custom_id, str) else None,
        "response": None,
        "error": {"code": record.error_type, "message": record.error, "line": record.row + 1},
    }


def _answered(
    row: Mapping[str, Any], record: ResultRecord, manifest: Manifest, created: int
) -> dict[str, Any]:
    number, body = _number(record), row["body"]
    is_chat = row["url"] == CHAT
    choices = [
        (_chat_choice if is_chat else _text_choice)(i, text, reason, body)
        for i, (text, reason) in enumerate(zip(record.outputs, record.finish_reasons, strict=True))
    ]
    answer = {
        "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{number}",
        "object": "chat.completion" if is_chat else "text_completion",
        "created": created,
        "model": body.get("model") or manifest.model,
        "choices": choices,
        "usage": {
            "prompt_tokens": record.prompt_tokens,
            "completion_tokens": record.output_tokens,
            "total_tokens": record.prompt_tokens + record.output_tokens,
        },
    }
    return {
        "id": f"batch_req_{number}",
        "custom_id": row["custom_id"],
        "response": {"status_code": 200, "request_id": f"req_{number}", "body": answer},
        "error": None,
    }


def _number(record: ResultRecord) -> str:
    """A name for the answer that is the same however often the job was killed."""
    return f"{row_seed(record.row, record.key):016x}"


def _text_choice(i: int, text: str, reason: str, body: Mapping[str, Any]) -> dict[str, Any]:
    return {"index": i, "text": text, "logprobs": None, "finish_reason": reason}


def _chat_choice(i: int, text: str, reason: str, body: Mapping[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if body.get("tools") and body.get("tool_choice") != "none":
        called = _called(i, text)
        if called is not None:
            message, reason = called, "tool_calls"
    return {"index": i, "message": message, "logprobs": None, "finish_reason": reason}


def _called(i: int, text: str) -> dict[str, Any] | None:
    """The message with the tool calls that an answer makes; None if it makes none."""
    try:
        parsed = parse_tool_calls(text)
        calls = [
            {
                "id": f"call_{i}_{number}",
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": json.dumps(call.arguments, allow_nan=False),
                },
            }
            for number, call in enumerate(parsed.tool_calls)
        ]
    except (ValueError, RecursionError):  # what does not come out as calls is the model's text
        return None
    if not calls:
        return None
    return {"role": "assistant", "content": parsed.content or None, "tool_calls": calls}
