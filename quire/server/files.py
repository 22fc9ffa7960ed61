"""Files in the database: their owners, names and lifetimes.

Every query has the id of the caller's key; the file of another key is not found.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Literal, TypedDict

from quire.openai_api.errors import ApiError, bad, not_found
from quire.params.rules import show
from quire.server.batch_states import LIVE
from quire.server.database import shown_as
from quire.server.ids import FILE, is_id, new_id
from quire.server.paging import Page, select_page

PURPOSES = ("batch", "user_data")  # of uploads
BATCH_OUTPUT = "batch_output"
SHORTEST_LIFE, LONGEST_LIFE = 3600, 30 * 86400  # seconds
LONGEST_NAME = 255


class FileObject(TypedDict):
    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str
    status: Literal["processed"]
    status_details: None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """One file. `storage` is the name of its bytes, which only the server knows."""

    id: str
    key_id: str
    storage: str
    filename: str
    purpose: str
    bytes: int
    sha256: str
    created_at: int
    expires_at: int | None

    def as_object(self) -> FileObject:
        own = {"object": "file", "status": "processed", "status_details": None}
        return shown_as(FileObject, self, **own)


_COLUMNS = tuple(field.name for field in fields(StoredFile))
_INSERT = f"INSERT INTO files ({', '.join(_COLUMNS)}) VALUES (:{', :'.join(_COLUMNS)})"


def new_file(
    *,
    key_id: str,
    storage: str,
    filename: str,
    purpose: str,
    bytes: int,
    sha256: str,
    lifetime: int | None,
) -> StoredFile:
    now = int(time.time())
    return StoredFile(
        id=new_id(FILE),
        key_id=key_id,
        storage=storage,
        filename=filename,
        purpose=purpose,
        bytes=bytes,
        sha256=sha256,
        created_at=now,
        expires_at=None if lifetime is None else now + lifetime,
    )


def file_of(row: sqlite3.Row) -> StoredFile:
    return StoredFile(**{name: row[name] for name in _COLUMNS})


def insert(connection: sqlite3.Connection, file: StoredFile) -> None:
    connection.execute(_INSERT, asdict(file))


def find(connection: sqlite3.Connection, key_id: str, file_id: object) -> StoredFile:
    """The file of this id and key; 404 if there is none, or if it is another key's."""
    row = None
    if is_id(file_id, FILE):
        row = connection.execute(
            "SELECT * FROM files WHERE key_id = ? AND id = ? "
            "AND (expires_at IS NULL OR expires_at > ?)",
            (key_id, file_id, int(time.time())),
        ).fetchone()
    if row is None:
        raise not_found("there is no such file", param="file_id")
    return file_of(row)


def storage_of(connection: sqlite3.Connection, file_id: str) -> str:
    """The storage name of a file that must exist; for the server itself, without a key."""
    row = connection.execute("SELECT storage FROM files WHERE id = ?", (file_id,)).fetchone()
    return str(row["storage"])


def page_of(
    connection: sqlite3.Connection, key_id: str, page: Page, purpose: str | None
) -> tuple[list[StoredFile], bool]:
    where = {"key_id": key_id} | ({} if purpose is None else {"purpose": purpose})
    rows, has_more = select_page(connection, "files", page, kinds=(FILE,), where=where)
    return [file_of(row) for row in rows], has_more


def used_bytes(connection: sqlite3.Connection, key_id: str) -> int:
    """The bytes of the key's files and of the parts of its uploads."""
    [files] = connection.execute(
        "SELECT coalesce(sum(bytes), 0) FROM files WHERE key_id = ?", (key_id,)
    ).fetchone()
    [parts] = connection.execute(
        "SELECT coalesce(sum(p.bytes), 0) FROM upload_parts p JOIN uploads u ON u.id = p.upload_id "
        "WHERE u.key_id = ?",
        (key_id,),
    ).fetchone()
    return int(files) + int(parts)


def delete(connection: sqlite3.Connection, key_id: str, file_id: object) -> StoredFile:
    """Delete the file's row; 400 while a batch still needs the file."""
    file = find(connection, key_id, file_id)
    if is_input_of_live(connection, file.id):
        raise ApiError(
            400,
            "a batch that has not ended reads this file; cancel the batch first",
            code="file_in_use",
            param="file_id",
        )
    connection.execute("DELETE FROM files WHERE id = ?", (file.id,))
    return file


def take_of_batch(connection: sqlite3.Connection, file_ids: Sequence[str]) -> list[StoredFile]:
    """Delete the rows of a deleted batch's files, except one that another batch reads."""
    marks = ", ".join("?" * len(file_ids))
    rows = connection.execute(f"SELECT * FROM files WHERE id IN ({marks})", file_ids).fetchall()
    return _forgotten(connection, rows)


def _forgotten(connection: sqlite3.Connection, rows: Sequence[sqlite3.Row]) -> list[StoredFile]:
    gone = [file_of(row) for row in rows if not is_input_of_live(connection, row["id"])]
    connection.executemany("DELETE FROM files WHERE id = ?", [(file.id,) for file in gone])
    return gone


def is_input_of_live(connection: sqlite3.Connection, file_id: str) -> bool:
    marks = ", ".join("?" * len(LIVE))
    found = connection.execute(
        f"SELECT 1 FROM batches WHERE input_file_id = ? AND status IN ({marks}) LIMIT 1",
        (file_id, *LIVE),
    ).fetchone()
    return found is not None


def take_expired(connection: sqlite3.Connection, now: int) -> list[StoredFile]:
    """Delete the rows of expired files, except those that a batch still reads."""
    rows = connection.execute(
        "SELECT * FROM files WHERE expires_at IS NOT NULL AND expires_at <= ? LIMIT 1000", (now,)
    ).fetchall()
    return _forgotten(connection, rows)


def checked_lifetime(anchor: object, seconds: object) -> int:
    """The seconds that a file stays after it was made; 400 for an invalid time."""
    if anchor != "created_at":
        raise bad(f"the anchor is created_at, not {show(anchor)}", param="expires_after[anchor]")
    if isinstance(seconds, str) and seconds.isascii() and seconds.isdigit() and len(seconds) < 10:
        seconds = int(seconds)
    if type(seconds) is not int or not SHORTEST_LIFE <= seconds <= LONGEST_LIFE:
        raise bad(
            f"seconds is a whole number from {SHORTEST_LIFE:,} to {LONGEST_LIFE:,}, not "
            f"{show(seconds)}",
            param="expires_after[seconds]",
        )
    return seconds


def checked_purpose(purpose: object) -> str:
    if not isinstance(purpose, str) or purpose not in PURPOSES:
        raise bad(f"purpose is one of {', '.join(PURPOSES)}, not {show(purpose)}", param="purpose")
    return purpose


def checked_name(name: str) -> str:
    """The last part of a name, without characters that could act in a terminal, header or page."""
    last = name.replace("\\", "/").rsplit("/", 1)[-1]
    kept = "".join(letter for letter in last if letter.isprintable() and letter not in '"')
    return kept.strip()[:LONGEST_NAME] or "file"
