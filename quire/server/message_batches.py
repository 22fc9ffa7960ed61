"""Batches in the form that Anthropic's clients read, made from the same database rows."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal, TypedDict

from quire.openai_api.fields import MESSAGES
from quire.server.batch_lines import CANCELLED, EXPIRED
from quire.server.batch_states import ENDS, TIMES
from quire.server.batches import StoredBatch

BATCHES = f"{MESSAGES}/batches"


class ResultCounts(TypedDict):
    processing: int
    succeeded: int
    errored: int
    canceled: int
    expired: int


class MessageBatch(TypedDict):
    id: str
    type: Literal["message_batch"]
    processing_status: Literal["in_progress", "canceling", "ended"]
    request_counts: ResultCounts
    created_at: str
    expires_at: str
    ended_at: str | None
    cancel_initiated_at: str | None
    archived_at: None
    results_url: str | None


class DeletedMessageBatch(TypedDict):
    id: str
    type: Literal["message_batch_deleted"]


def message_batch(batch: StoredBatch, address: str) -> MessageBatch:
    """`address` is that of the server, as the client calls it."""
    status: Literal["in_progress", "canceling", "ended"] = "in_progress"
    if not batch.is_live:
        status = "ended"
    elif batch.status == "cancelling":
        status = "canceling"
    ended = [at for end in ENDS if (at := getattr(batch, TIMES[end])) is not None]
    has_results = batch.output_file_id is not None
    return {
        "id": batch.id,
        "type": "message_batch",
        "processing_status": status,
        "request_counts": _counts(batch),
        "created_at": _time(batch.created_at),
        "expires_at": _time(batch.expires_at),
        "ended_at": _time(ended[0]) if ended else None,
        "cancel_initiated_at": _time(batch.cancelling_at) if batch.cancelling_at else None,
        "archived_at": None,
        "results_url": f"{address}{BATCHES}/{batch.id}/results" if has_results else None,
    }


def _counts(batch: StoredBatch) -> ResultCounts:
    """Until the batch ends, every request counts as `processing`, as in the original."""
    lost = {CANCELLED: batch.total} if batch.status == "cancelled" else {}  # without a journal
    causes = lost if batch.causes is None else batch.causes
    canceled, expired = causes.get(CANCELLED, 0), causes.get(EXPIRED, 0)
    return {
        "processing": batch.total if batch.is_live else 0,
        "succeeded": 0 if batch.is_live else batch.completed,
        "errored": 0 if batch.is_live else max(batch.failed - canceled - expired, 0),
        "canceled": canceled,
        "expired": expired,
    }


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
