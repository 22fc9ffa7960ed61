"""The lines of a batch's output and error files, made from the records of its journal.

A rejected request has a response with its status. A request without an answer (expired, cancelled,
or the engine died) has an error and no response. The line of a message has Anthropic's form of a
result. A line depends only on the batch and its record, so writing it again gives the same bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from quire.anthropic_api.errors import error_body
from quire.jobs.store.record import ResultRecord
from quire.openai_api.errors import ApiError, server_error
from quire.openai_api.fields import MESSAGES
from quire.server.batch_engine import RowAnswered

EXPIRED, CANCELLED = "batch_expired", "batch_cancelled"  # the batch ended before the request
_UNANSWERED = {EXPIRED: "expired", CANCELLED: "canceled"}
SUMMED = ("cached_tokens", "reasoning_tokens")  # added up in the batch's usage
STATUS, BODY = "status", "body"  # names in a record's `extra`


def row_name(batch_id: str, row: int) -> str:
    """A name for the answer that is unique among the rows of all batches."""
    return hashlib.blake2b(f"{batch_id}\0{row}".encode(), digest_size=12).hexdigest()


def line_of(endpoint: str, batch_id: str, record: ResultRecord) -> dict[str, Any]:
    name = row_name(batch_id, record.row)
    if endpoint == MESSAGES:
        return {"custom_id": record.key, "result": _message_result(record, f"req_{name}")}
    response = error = None
    if BODY in record.extra:
        response = {
            "status_code": record.extra[STATUS],
            "request_id": f"req_{name}",
            "body": record.extra[BODY],
        }
    else:
        error = {"code": record.error_type, "message": record.error}
    return {
        "id": f"batch_req_{name}",
        "custom_id": record.key,
        "response": response,
        "error": error,
    }


def _message_result(record: ResultRecord, request_id: str) -> dict[str, Any]:
    body = record.extra.get(BODY)
    if not record.failed:
        return {"type": "succeeded", "message": body}
    if (ended := _UNANSWERED.get(str(record.error_type))) is not None:
        return {"type": ended}
    error = server_error(str(record.error))
    if body is not None:  # it was refused
        refusal = body["error"]
        param, code = refusal["param"], refusal["code"]
        error = ApiError(record.extra[STATUS], refusal["message"], param=param, code=code)
    return {"type": "errored", "error": error_body(error, request_id)}


def answered(found: RowAnswered) -> dict[str, Any]:
    """The `extra` of a record with an answer."""
    extra: dict[str, Any] = {STATUS: 200, BODY: found.body}
    for name in SUMMED:
        if count := getattr(found, name):
            extra[name] = count
    if found.timings:
        extra["timings"] = found.timings
    return extra


def rejected(status: int, body: Mapping[str, Any]) -> dict[str, Any]:
    """The `extra` of a record whose request was refused."""
    return {STATUS: status, BODY: body}
