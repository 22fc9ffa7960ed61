"""The lines of a batch's output and error files, made from the records of its journal.

A rejected request is a response with its status; what never came to an answer (expired, cancelled,
an engine that fell) has no response and an error. Everything in a line is a function of the batch
and its record, so that writing it again gives the same bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from quire.jobs.store.record import ResultRecord
from quire.openai_api.fields import CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES
from quire.server.batch_engine import RowAnswered

_PREFIXES = {CHAT: "chatcmpl-", COMPLETIONS: "cmpl-", RESPONSES: "resp_", EMBEDDINGS: "embd-"}
SUMMED = ("cached_tokens", "reasoning_tokens")  # for the batch's own usage
STATUS, BODY = "status", "body"  # what a record's `extra` holds for these lines


def row_name(batch_id: str, row: int) -> str:
    """A name for an answer that no other row of any batch has."""
    return hashlib.blake2b(f"{batch_id}\0{row}".encode(), digest_size=12).hexdigest()


def response_id(endpoint: str, batch_id: str, row: int) -> str:
    return _PREFIXES[endpoint] + row_name(batch_id, row)


def line_of(batch_id: str, record: ResultRecord) -> dict[str, Any]:
    name = row_name(batch_id, record.row)
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
