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

CHAT = "/v1/chat/completions"
_PREFIXES = {CHAT: "chatcmpl-", "/v1/completions": "cmpl-", "/v1/responses": "resp_"}
STATUS, BODY = "status", "body"  # what a record's `extra` holds for these lines


def row_name(batch_id: str, row: int) -> str:
    """A name for an answer that no other row of any batch has."""
    return hashlib.blake2b(f"{batch_id}\0{row}".encode(), digest_size=12).hexdigest()


def response_id(endpoint: str, batch_id: str, row: int) -> str:
    return _PREFIXES.get(endpoint, "resp_") + row_name(batch_id, row)


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


def answered(body: Mapping[str, Any], cached_tokens: int) -> dict[str, Any]:
    """The `extra` of a record with an answer."""
    return {STATUS: 200, BODY: body, **({"cached_tokens": cached_tokens} if cached_tokens else {})}


def rejected(status: int, body: Mapping[str, Any]) -> dict[str, Any]:
    """The `extra` of a record whose request was refused."""
    return {STATUS: status, BODY: body}
