"""Uploads in parts, in the database: begun, extended, completed or cancelled.

Parts are files of their own until the upload is completed; then they become one.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, TypedDict

from quire.openai_api.errors import ApiError, bad, not_found
from quire.server.database import shown_as
from quire.server.files import FileObject
from quire.server.ids import PART, UPLOAD, is_id, new_id

LIFE = 3600  # seconds after which an upload that was not completed expires
MOST_PARTS, LARGEST_PART = 1000, 64 << 20
MOST_PENDING = 100  # uploads of one key


class UploadObject(TypedDict):
    id: str
    object: Literal["upload"]
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: str
    status: str
    file: FileObject | None


class PartObject(TypedDict):
    id: str
    object: Literal["upload.part"]
    created_at: int
    upload_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """One upload; `bytes` is what it will have in all."""

    id: str
    key_id: str
    filename: str
    purpose: str
    mime_type: str
    bytes: int
    lifetime: int | None
    status: str = "pending"
    file_id: str | None = None
    created_at: int
    expires_at: int

    def as_object(self, file: FileObject | None = None) -> UploadObject:
        return shown_as(UploadObject, self, object="upload", file=file)


@dataclass(frozen=True, slots=True)
class Part:
    id: str
    storage: str
    bytes: int


_COLUMNS = tuple(field.name for field in fields(Upload))
_INSERT = f"INSERT INTO uploads ({', '.join(_COLUMNS)}) VALUES (:{', :'.join(_COLUMNS)})"


def insert(connection: sqlite3.Connection, upload: Upload) -> None:
    [pending] = connection.execute(
        "SELECT count(*) FROM uploads WHERE key_id = ? AND status = 'pending'", (upload.key_id,)
    ).fetchone()
    if pending >= MOST_PENDING:
        raise ApiError(
            429,
            f"this key has {MOST_PENDING} uploads that were not completed; complete or cancel one",
            code="too_many_uploads",
            type="rate_limit_error",
            headers=(("retry-after", "60"), ("x-should-retry", "false")),
        )
    connection.execute(_INSERT, asdict(upload))


def find_pending(connection: sqlite3.Connection, key_id: str, upload_id: object) -> Upload:
    """The key's upload; 404 if there is none, 400 if it is over."""
    row = None
    if is_id(upload_id, UPLOAD):
        row = connection.execute(
            "SELECT * FROM uploads WHERE key_id = ? AND id = ?", (key_id, upload_id)
        ).fetchone()
    if row is None:
        raise not_found("there is no such upload", param="upload_id")
    if row["status"] != "pending" or row["expires_at"] <= time.time():
        status = "expired" if row["status"] == "pending" else row["status"]
        raise bad(f"the upload takes no more parts: it is {status}", param="upload_id")
    return Upload(**{name: row[name] for name in _COLUMNS})


def add_part(
    connection: sqlite3.Connection, key_id: str, upload_id: str, storage: str, size: int
) -> PartObject:
    upload = find_pending(connection, key_id, upload_id)
    [num, total] = connection.execute(
        "SELECT count(*), coalesce(sum(bytes), 0) FROM upload_parts WHERE upload_id = ?",
        (upload.id,),
    ).fetchone()
    if num >= MOST_PARTS or total + size > upload.bytes:
        raise bad(
            f"an upload has at most {MOST_PARTS:,} parts, and this one {upload.bytes:,} bytes in "
            "all",
            param="data",
        )
    part_id, now = new_id(PART), int(time.time())
    connection.execute(
        "INSERT INTO upload_parts (id, upload_id, storage, bytes, created_at) "
        "VALUES (?, ?, ?, ?, ?)",
        (part_id, upload.id, storage, size, now),
    )
    return {
        "id": part_id,
        "object": "upload.part",
        "created_at": now,
        "upload_id": upload.id,
    }


def parts_of(connection: sqlite3.Connection, upload: Upload, wanted: Sequence[Any]) -> list[Part]:
    """The parts in the order that was asked for; 400 where they do not make the whole."""
    rows = connection.execute(
        "SELECT id, storage, bytes FROM upload_parts WHERE upload_id = ?", (upload.id,)
    ).fetchall()
    known = {row["id"]: Part(row["id"], row["storage"], row["bytes"]) for row in rows}
    if len(set(map(str, wanted))) != len(wanted) or not all(
        isinstance(each, str) and each in known for each in wanted
    ):
        raise bad("part_ids names parts of this upload, each once", param="part_ids")
    chosen = [known[each] for each in wanted]
    if (size := sum(part.bytes for part in chosen)) != upload.bytes:
        raise bad(
            f"the parts have {size:,} bytes, and the upload was begun with {upload.bytes:,}",
            param="part_ids",
        )
    return chosen


def end(
    connection: sqlite3.Connection, upload: Upload, status: str, file_id: str | None = None
) -> list[str]:
    """Close the upload and forget its parts; where their bytes are."""
    find_pending(connection, upload.key_id, upload.id)
    connection.execute(
        "UPDATE uploads SET status = ?, file_id = ? WHERE id = ?", (status, file_id, upload.id)
    )
    return _take_parts(connection, upload.id)


def take_expired(connection: sqlite3.Connection, now: int) -> list[str]:
    """Forget uploads whose time is over; where the bytes of their parts are."""
    rows = connection.execute(
        "SELECT id FROM uploads WHERE expires_at <= ? LIMIT 1000", (now,)
    ).fetchall()
    names = [name for row in rows for name in _take_parts(connection, row["id"])]
    connection.executemany("DELETE FROM uploads WHERE id = ?", [(row["id"],) for row in rows])
    return names


def _take_parts(connection: sqlite3.Connection, upload_id: str) -> list[str]:
    rows = connection.execute(
        "SELECT storage FROM upload_parts WHERE upload_id = ?", (upload_id,)
    ).fetchall()
    connection.execute("DELETE FROM upload_parts WHERE upload_id = ?", (upload_id,))
    return [row["storage"] for row in rows]
