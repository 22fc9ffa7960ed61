"""The end of a batch: each line gets a result, files become durable, a transaction records it."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import Any

from quire.server import batches, files
from quire.server.batch_job import BatchJob, Outcome, Written
from quire.server.batch_lines import CANCELLED, EXPIRED
from quire.server.batch_states import Ending
from quire.server.batches import StoredBatch
from quire.server.files import StoredFile
from quire.server.storage import Storage

OUTPUT_LIFE = 30 * 86400  # seconds that outputs stay where nothing else is said
_UNANSWERED: dict[Ending, tuple[str, str]] = {
    "expired": (EXPIRED, "the batch's completion window ended before this request ran"),
    "cancelled": (CANCELLED, "the batch was cancelled before this request ran"),
}
LOST = [
    {
        "code": "batch_lost",
        "line": None,
        "message": "the files that the server kept of this batch are gone or broken, and its "
        "answers with them; upload its input and create it again",
        "param": None,
    }
]


@dataclass(frozen=True, slots=True)
class WrittenOut:
    """A batch whose files are on disk, but not yet in the database."""

    batch: StoredBatch
    outcome: Outcome
    output: StoredFile | None
    errors: StoredFile | None


def write_out(batch: StoredBatch, job: BatchJob, storage: Storage, ending: Ending) -> WrittenOut:
    """Give every line without a result its error, and write the files. Blocks."""
    outcome = job.write(_UNANSWERED.get(ending))
    return WrittenOut(
        batch,
        outcome,
        _linked(batch, outcome.output, storage),
        _linked(batch, outcome.errors, storage),
    )


def _linked(batch: StoredBatch, written: Written | None, storage: Storage) -> StoredFile | None:
    if written is None:
        return None
    file = files.new_file(
        key_id=batch.key_id,
        storage=storage.new_name(),
        filename=written.path.name,
        purpose=files.BATCH_OUTPUT,
        bytes=written.size,
        sha256=written.sha256,
        lifetime=batch.output_lifetime or OUTPUT_LIFE,
    )
    storage.link(written.path, file.storage)
    return file


def commit_end(connection: sqlite3.Connection, ending: Ending, written: WrittenOut) -> None:
    """Record the files and the end of the batch, in one transaction."""
    for file in (written.output, written.errors):
        if file is not None:
            files.insert(connection, file)
    outcome = written.outcome
    values: dict[str, Any] = {
        "completed": outcome.completed,
        "failed": outcome.failed,
        "usage": outcome.usage,
        "errors": _all_failed(outcome),
        "causes": outcome.causes,
        "output_file_id": written.output.id if written.output else None,
        "error_file_id": written.errors.id if written.errors else None,
    }
    batch_id = written.batch.id
    if batches.change(connection, batch_id, ending, of=("finalizing",), **values) is None:
        batches.change(connection, batch_id, "cancelled", of=("cancelling",), **values)


def _all_failed(outcome: Outcome) -> list[dict[str, Any]] | None:
    """The entry of the batch's `errors` if every request failed, since clients look there."""
    if outcome.completed or not outcome.failed:
        return None
    cause = max(outcome.causes, key=lambda cause: outcome.causes[cause])
    message = f"all {outcome.failed:,} requests failed, most of them with {cause}"
    return [{"code": "all_requests_failed", "line": None, "message": message, "param": None}]
