"""OpenAI batch files as a job: reading request lines, and writing response lines.

A line is {"custom_id", "method": "POST", "url", "body"}, for /v1/chat/completions and
/v1/completions. The `model` of a body is echoed; the job's own model answers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from quire.jobs.input.rows import BadRow
from quire.jobs.output.joined import joined
from quire.jobs.output.output import check_complete
from quire.jobs.store.durable import replacing
from quire.jobs.store.keys import row_seed
from quire.jobs.store.manifest import Manifest
from quire.jobs.store.record import ResultRecord
from quire.jobs.store.segments import ResultIndex
from quire.openai_api.asks import ENDPOINTS, Asked, read_body
from quire.openai_api.bodies import response_body, text_parts
from quire.openai_api.errors import ApiError, bad
from quire.openai_api.fields import CHAT, COMPLETIONS
from quire.openai_api.outputs import Answer, Output
from quire.params.rules import show

# Fields that need more than a job's records hold, or that only a live connection can have.
_NOT_BUILT = (
    *("logprobs", "top_logprobs", "prompt_logprobs", "echo", "return_token_ids"),
    *("stream", "add_special_tokens"),
)
# Errors of the request itself, which a server would have answered with 400.
_REJECTED = {
    "prompt_too_long": "context_length_exceeded",
    "not_supported": "not_supported",
    "no_token_left": "no_token_left",
    "invalid_request": None,
    "invalid_params": None,
    "invalid_prompt": None,
    "invalid_grammar": None,
}


class BatchAsking:
    """Makes a request of a line; raises BadRow with the reason where the line is not a request."""

    def ask(self, row: Mapping[str, Any]) -> dict[str, Any]:
        if row.get("method", "POST") != "POST":
            raise _bad(f"the method is POST, not {show(row['method'])}")
        if not isinstance(row.get("body"), Mapping):
            raise _bad("the line has no body")
        if row.get("url") not in ENDPOINTS:
            raise _bad(f"the url is {CHAT} or {COMPLETIONS}, not {show(row.get('url'))}")
        [asked] = _read(row).rows
        prompt = asked.get("prompt")
        if isinstance(prompt, list):
            prompt = {"prompt_token_ids": prompt}
        kept = {"params": asked["params"]}
        kept |= {name: asked[name] for name in ("messages", "chat") if name in asked}
        return kept if prompt is None else {**kept, "prompt": prompt}


def _read(row: Mapping[str, Any]) -> Asked:
    """The request of a line; raises where it uses a field that a job cannot answer."""
    body = row["body"]
    for name in _NOT_BUILT:
        if body.get(name) is not None and body[name] is not False:
            raise BadRow("not_supported", f"{name} is not built for batch files; leave it out")
    try:
        asked = read_body(row["url"], body)
    except ApiError as error:
        kind = "not_supported" if error.code == "not_supported" else "invalid_request"
        raise BadRow(kind, error.message) from None
    if len(asked.rows) != 1:
        raise _bad("the body's prompt is one text or one list of token ids; make a line of each")
    return asked


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
        check_complete(written, num_rows)


def _line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def _failed(row: Mapping[str, Any], record: ResultRecord) -> dict[str, Any]:
    """A rejected request has a response with status 400; one that failed otherwise has none."""
    number, custom_id = _number(record), row.get("custom_id")
    line: dict[str, Any] = {
        "id": f"batch_req_{number}",
        "custom_id": custom_id if isinstance(custom_id, str) else None,
        "response": None,
        "error": None,
    }
    if record.error_type in _REJECTED and line["custom_id"] is not None:
        error = bad(record.error or "", code=_REJECTED[record.error_type])
        line["response"] = {
            "status_code": error.status,
            "request_id": f"req_{number}",
            "body": error.body(),
        }
    else:
        message = f"line {record.row + 1}: {record.error}"
        line["error"] = {"code": record.error_type, "message": message}
    return line


def _answered(
    row: Mapping[str, Any], record: ResultRecord, manifest: Manifest, created: int
) -> dict[str, Any]:
    number, asked = _number(record), _read(row)
    answers = []
    for i, (text, reason) in enumerate(zip(record.outputs, record.finish_reasons, strict=True)):
        content, reasoning, calls = text_parts(asked, text)
        answers.append(
            Answer(i, text, finish_reason=reason, content=content, reasoning=reasoning, calls=calls)
        )
    output = Output(
        tuple(answers),
        True,
        prompt_tokens=record.prompt_tokens,
        output_tokens=record.output_tokens,
    )
    body = response_body(
        asked,
        [output],
        id=f"{'chatcmpl' if asked.is_chat else 'cmpl'}-{number}",
        created=created,
        model=asked.model or manifest.model,
    )
    return {
        "id": f"batch_req_{number}",
        "custom_id": row["custom_id"],
        "response": {"status_code": 200, "request_id": f"req_{number}", "body": body},
        "error": None,
    }


def _number(record: ResultRecord) -> str:
    """An id for the answer that is the same after any number of restarts."""
    return f"{row_seed(record.row, record.key):016x}"
