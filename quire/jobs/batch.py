"""OpenAI batch files as a job: what a line asks for, and what is answered.

A line is {"custom_id", "method": "POST", "url", "body"}, for /v1/chat/completions and
/v1/completions. The `model` of a body is echoed; the job's own model answers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from quire.errors import CorruptJob
from quire.inputs.tool_calls import parse_tool_calls
from quire.jobs.durable import replacing
from quire.jobs.keys import row_seed
from quire.jobs.manifest import Manifest
from quire.jobs.record import ResultRecord
from quire.jobs.rows import BadRow
from quire.jobs.segments import ResultIndex
from quire.jobs.table import joined

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
# Parameters that mean the same here, under the same name.
_SAME = (
    *("temperature", "top_p", "n", "stop", "seed", "presence_penalty", "frequency_penalty"),
    *("top_k", "min_p", "repetition_penalty", "min_tokens", "ignore_eos", "stop_token_ids"),
    *("skip_special_tokens", "include_stop_str_in_output", "structured_outputs", "bad_words"),
    *("allowed_token_ids", "truncate_prompt_tokens"),
)
# Fields about accounts and transport: they change no answer.
_IGNORED = frozenset(
    {"model", "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"}
    | {"parallel_tool_calls", "stream_options"}
)
# Fields that ask for nothing when they have one of these values.
_HARMLESS: dict[str, tuple[Any, ...]] = {
    "stream": (False, None),
    "logprobs": (False, None, 0),
    "top_logprobs": (0, None),
    "echo": (False, None),
    "suffix": ("", None),
    "best_of": (1, None),
    "tool_choice": ("auto", "none", None),
    "modalities": (["text"], None),
}


class BatchAsking:
    """Makes a request of a line; raises BadRow with the reason for one that makes none."""

    def ask(self, row: Mapping[str, Any]) -> dict[str, Any]:
        url, body = row.get("url"), row.get("body")
        if row.get("method", "POST") != "POST":
            raise _bad(f"the method is POST, not {row['method']!r}")
        if not isinstance(body, Mapping):
            raise _bad("the line has no body")
        if url == CHAT:
            asked = self._chat(body)
        elif url == COMPLETIONS:
            asked = self._completion(body)
        else:
            raise _bad(f"the url is {CHAT} or {COMPLETIONS}, not {url!r}")
        asked["params"] = _params(body, is_chat=url == CHAT)
        return asked

    def _chat(self, body: Mapping[str, Any]) -> dict[str, Any]:
        messages = body.get("messages")
        if not isinstance(messages, list):
            raise _bad("the body has no list of messages")
        options = {
            name: body[name]
            for name in ("tools", "documents", "chat_template_kwargs", "continue_final_message")
            if body.get(name) is not None
        }
        if body.get("tool_choice") == "none":
            options.pop("tools", None)
        if "add_generation_prompt" in body:
            options["add_generation_prompt"] = bool(body["add_generation_prompt"])
        return {"messages": messages, "chat": options}

    def _completion(self, body: Mapping[str, Any]) -> dict[str, Any]:
        prompt = body.get("prompt")
        if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
            prompt = prompt[0]
        if isinstance(prompt, list) and all(type(token) is int for token in prompt):
            return {"prompt": {"prompt_token_ids": prompt}}
        if not isinstance(prompt, str):
            raise _bad(
                "the body's prompt is one text or one list of token ids; make a line of each"
            )
        return {"prompt": prompt}


_ASKED = frozenset(
    {"messages", "prompt", "tools", "documents", "chat_template_kwargs", "response_format"}
    | {"add_generation_prompt", "continue_final_message", "max_tokens", "max_completion_tokens"}
    | {"logit_bias"}
)


def _params(body: Mapping[str, Any], *, is_chat: bool) -> dict[str, Any]:
    """The sampling parameters of a body; what is not built is refused and not left out."""
    for name, value in body.items():
        if name in _HARMLESS and value in _HARMLESS[name]:
            continue
        if name not in _SAME and name not in _IGNORED and name not in _ASKED:
            raise BadRow("not_supported", f"{name} is not built for batch files; leave it out")
    params = {name: body[name] for name in _SAME if body.get(name) is not None}
    limit = body.get("max_completion_tokens", body.get("max_tokens"))
    # As there: a chat answers as long as there is room, a completion says sixteen tokens.
    params["max_tokens"] = limit if limit is not None or is_chat else 16
    if isinstance(bias := body.get("logit_bias"), Mapping):
        params["logit_bias"] = {int(token): value for token, value in _numbered(bias)}
    if (wanted := _response_format(body.get("response_format"))) is not None:
        params["structured_outputs"] = wanted
    return params


def _numbered(bias: Mapping[str, Any]) -> Iterator[tuple[int, Any]]:
    for token, value in bias.items():
        if not token.isdecimal():
            raise _bad(f"logit_bias names tokens by number, not {token!r}")
        yield int(token), value


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
        parsed = parse_tool_calls(text)
        if parsed.tool_calls:
            message = {
                "role": "assistant",
                "content": parsed.content or None,
                "tool_calls": [
                    {
                        "id": f"call_{i}_{number}",
                        "type": "function",
                        "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
                    }
                    for number, call in enumerate(parsed.tool_calls)
                ],
            }
            reason = "tool_calls"
    return {"index": i, "message": message, "logprobs": None, "finish_reason": reason}
