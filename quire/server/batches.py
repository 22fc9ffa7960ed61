"""Batches in the database: inserting, finding, and changing their state.

Each change is one transaction that checks the state it starts from. So if a cancel and an end come
together, exactly one of them takes effect.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from sqlite3 import Connection, Row
from typing import Any, Literal, TypedDict

from quire.openai_api.errors import ApiError, not_found
from quire.server.batch_states import LIVE, TIMES, Ending, Status
from quire.server.database import shown_as
from quire.server.ids import BATCH, MESSAGE_BATCH, is_id
from quire.server.paging import Page, select_page

_JSON = ("metadata", "errors", "usage", "causes")
KINDS = (BATCH, MESSAGE_BATCH)


class Counts(TypedDict):
    total: int
    completed: int
    failed: int


class BatchErrors(TypedDict):
    object: Literal["list"]
    data: list[Mapping[str, Any]]


class BatchObject(TypedDict):
    id: str
    object: Literal["batch"]
    endpoint: str
    model: str
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str
    status: Status
    status_details: str | None
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: Counts
    usage: Mapping[str, Any] | None
    metadata: Mapping[str, str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBatch:
    """One batch. `storage` names its job directory; `ending` is the final state of a batch that is
    being written out."""

    id: str
    key_id: str
    storage: str
    endpoint: str
    input_file_id: str
    input_sha256: str
    completion_window: str
    metadata: Mapping[str, str] | None
    output_lifetime: int | None
    model: str
    created_at: int
    expires_at: int
    status: Status = "validating"
    ending: Ending | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    total: int = 0
    completed: int = 0
    failed: int = 0
    errors: Sequence[Mapping[str, Any]] | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    usage: Mapping[str, Any] | None = None
    causes: Mapping[str, int] | None = None  # type of error -> number of failed lines

    @property
    def is_live(self) -> bool:
        return self.status in LIVE

    @property
    def files(self) -> tuple[str, ...]:
        """The ids of the batch's input and output files."""
        found = (self.input_file_id, self.output_file_id, self.error_file_id)
        return tuple(filter(None, found))


_COLUMNS = tuple(field.name for field in fields(StoredBatch))
_INSERT = f"INSERT INTO batches ({', '.join(_COLUMNS)}) VALUES (:{', :'.join(_COLUMNS)})"
_IS_LIVE = "status IN (" + ", ".join(f"'{status}'" for status in LIVE) + ")"


def batch_of(row: Row) -> StoredBatch:
    values = {name: row[name] for name in _COLUMNS}
    for name in _JSON:
        values[name] = None if values[name] is None else json.loads(values[name])
    return StoredBatch(**values)


def insert(connection: Connection, batch: StoredBatch) -> None:
    connection.execute(_INSERT, _bound({name: getattr(batch, name) for name in _COLUMNS}))


def _bound(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: json.dumps(value) if name in _JSON and value is not None else value
        for name, value in values.items()
    }


def find(
    connection: Connection, key_id: str, batch_id: object, kinds: tuple[str, ...] = KINDS
) -> StoredBatch:
    """The batch of this id and key; 404 if there is none, or if it is another key's."""
    row = None
    if is_id(batch_id, *kinds):
        row = connection.execute(
            "SELECT * FROM batches WHERE key_id = ? AND id = ?", (key_id, batch_id)
        ).fetchone()
    if row is None:
        raise not_found("there is no such batch", param="batch_id")
    return batch_of(row)


def get(connection: Connection, batch_id: str) -> StoredBatch:
    """A batch that must exist; for the server itself, without a key."""
    row = connection.execute("SELECT * FROM batches WHERE id = ?", (batch_id,)).fetchone()
    return batch_of(row)


def page_of(
    connection: Connection, key_id: str, page: Page, endpoint: str | None = None
) -> tuple[list[StoredBatch], bool]:
    """A page of the key's batches, of one endpoint or of all."""
    where = {"key_id": key_id} | ({} if endpoint is None else {"endpoint": endpoint})
    rows, has_more = select_page(connection, "batches", page, kinds=KINDS, where=where)
    return [batch_of(row) for row in rows], has_more


def live(connection: Connection) -> list[StoredBatch]:
    """Every batch that has not ended, the oldest first."""
    rows = connection.execute(f"SELECT * FROM batches WHERE {_IS_LIVE} ORDER BY seq").fetchall()
    return [batch_of(row) for row in rows]


def num_live(connection: Connection, key_id: str) -> int:
    [found] = connection.execute(
        f"SELECT count(*) FROM batches WHERE key_id = ? AND {_IS_LIVE}", (key_id,)
    ).fetchone()
    return int(found)


def change(
    connection: Connection,
    batch_id: str,
    status: Status,
    *,
    of: Sequence[Status],
    **values: Any,
) -> StoredBatch | None:
    """Change the batch to `status` if it is in one of the states `of`. Returns the batch as it is
    then, or None if it was in another state."""
    values = {"status": status, **values}
    row = connection.execute("SELECT * FROM batches WHERE id = ?", (batch_id,)).fetchone()
    if row is None or row["status"] not in of:
        return None
    if status != row["status"] and (at := TIMES.get(status)) is not None:
        values[at] = int(time.time())
    assignments = ", ".join(f"{name} = :{name}" for name in values)
    connection.execute(
        f"UPDATE batches SET {assignments} WHERE id = :of_id", {**_bound(values), "of_id": batch_id}
    )
    return get(connection, batch_id)


def cancel(
    connection: Connection, key_id: str, batch_id: object, kinds: tuple[str, ...] = KINDS
) -> StoredBatch:
    """Cancel the batch; 400 if it has ended. One that is being cancelled stays as it is."""
    batch = find(connection, key_id, batch_id, kinds)
    if batch.status == "cancelling":
        return batch
    changed = change(
        connection, batch.id, "cancelling", of=("validating", "in_progress", "finalizing")
    )
    if changed is None:
        raise ApiError(
            400,
            f"the batch cannot be cancelled any more: it is {batch.status}",
            code="batch_ended",
            param="batch_id",
        )
    return changed


def delete(
    connection: Connection, key_id: str, batch_id: object, kinds: tuple[str, ...]
) -> StoredBatch:
    """Forget the batch; 400 while it runs."""
    batch = find(connection, key_id, batch_id, kinds)
    if batch.is_live:
        raise ApiError(
            400,
            "the batch has not ended; cancel it and wait for its end first",
            code="batch_in_use",
            param="batch_id",
        )
    connection.execute("DELETE FROM batches WHERE id = ?", (batch.id,))
    return batch


def without_outputs(connection: Connection, file_id: str) -> StoredBatch | None:
    """The batch that wrote this file, if none of the files that it wrote is left."""
    row = connection.execute(
        "SELECT * FROM batches WHERE :id IN (output_file_id, error_file_id) AND NOT EXISTS "
        "(SELECT 1 FROM files WHERE files.id IN (output_file_id, error_file_id))",
        {"id": file_id},
    ).fetchone()
    return None if row is None else batch_of(row)


def take_old(connection: Connection, ended_before: int) -> list[StoredBatch]:
    """Delete and return batches that ended long ago and have no files any more."""
    rows = connection.execute(
        f"SELECT * FROM batches WHERE NOT {_IS_LIVE} AND created_at < ? "
        "AND NOT EXISTS (SELECT 1 FROM files WHERE files.id IN (output_file_id, error_file_id)) "
        "LIMIT 1000",
        (ended_before,),
    ).fetchall()
    gone = [
        batch
        for batch in map(batch_of, rows)
        if max(filter(None, (getattr(batch, at) for at in TIMES.values()))) < ended_before
    ]
    connection.executemany("DELETE FROM batches WHERE id = ?", [(batch.id,) for batch in gone])
    return gone


def as_object(batch: StoredBatch, *, waiting: str | None = None) -> BatchObject:
    """The batch as clients read it. `waiting` says why it does not go on."""
    errors = {"object": "list", "data": list(batch.errors)} if batch.errors else None
    return shown_as(
        BatchObject,
        batch,
        object="batch",
        errors=errors,
        status_details=waiting,
        request_counts=shown_as(Counts, batch),
    )
