"""One SQLite file with the records of files and batches.

The bytes of files are beside it, and the rows of a batch in its job directory. The database records
which of them exist and who owns them. One thread writes and one reads; a write that returned is on
disk.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar, cast

from quire.errors import CorruptJob
from quire.jobs.store.durable import keep_room
from quire.openai_api.errors import ApiError, server_error

Made = TypeVar("Made")
Shape = TypeVar("Shape")
Work = Callable[[sqlite3.Connection], Made]

_SCHEMA = """
CREATE TABLE files (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    key_id TEXT NOT NULL,
    storage TEXT NOT NULL UNIQUE,
    filename TEXT NOT NULL,
    purpose TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    sha256 TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER
) STRICT;
CREATE INDEX files_of_key ON files (key_id, seq);
CREATE INDEX files_by_end ON files (expires_at) WHERE expires_at IS NOT NULL;

CREATE TABLE batches (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    key_id TEXT NOT NULL,
    storage TEXT NOT NULL UNIQUE,
    endpoint TEXT NOT NULL,
    input_file_id TEXT NOT NULL,
    input_sha256 TEXT NOT NULL,
    completion_window TEXT NOT NULL,
    metadata TEXT,
    output_lifetime INTEGER,
    model TEXT NOT NULL,
    status TEXT NOT NULL,
    ending TEXT,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    in_progress_at INTEGER,
    finalizing_at INTEGER,
    completed_at INTEGER,
    failed_at INTEGER,
    expired_at INTEGER,
    cancelling_at INTEGER,
    cancelled_at INTEGER,
    total INTEGER NOT NULL DEFAULT 0,
    completed INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    errors TEXT,
    output_file_id TEXT,
    error_file_id TEXT,
    usage TEXT
) STRICT;
CREATE INDEX batches_of_key ON batches (key_id, seq);
CREATE INDEX batches_by_status ON batches (status);
CREATE INDEX batches_by_input ON batches (input_file_id);

CREATE TABLE uploads (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    key_id TEXT NOT NULL,
    filename TEXT NOT NULL,
    purpose TEXT NOT NULL,
    mime_type TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    lifetime INTEGER,
    status TEXT NOT NULL,
    file_id TEXT,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
) STRICT;
CREATE INDEX uploads_of_key ON uploads (key_id, status);

CREATE TABLE upload_parts (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    upload_id TEXT NOT NULL REFERENCES uploads (id) ON DELETE CASCADE,
    storage TEXT NOT NULL UNIQUE,
    bytes INTEGER NOT NULL,
    created_at INTEGER NOT NULL
) STRICT;
CREATE INDEX parts_of_upload ON upload_parts (upload_id, seq);
"""
# The statements that make each version from the one before; a new file runs all of them.
_STEPS = (_SCHEMA, "ALTER TABLE batches ADD COLUMN causes TEXT")
VERSION = len(_STEPS)


_RESERVE_BYTES = 1 << 20  # freed on a full disk, so that files can be deleted from the database
WRITE_REFUSALS = frozenset({503, 507})  # the database is locked, the disk is full


def disk_full() -> ApiError:
    why = "the server's disk is full; delete files that are no longer needed"
    return server_error(why, code="quota_exceeded", status=507)


def shown_as(shape: type[Shape], stored: object, **own: Any) -> Shape:
    """A stored object in the shape that clients read: its attributes that are fields of the shape,
    and the fields given in `own`."""
    names = shape.__annotations__
    return cast(
        Shape, {name: own[name] if name in own else getattr(stored, name) for name in names}
    )


class Database:
    """Two threads over one file. `write` runs its work as one transaction; `read` sees only what
    was committed. Both can be awaited, or waited for with `.result()` from another thread."""

    def __init__(self, path: Path) -> None:
        self._reserve = path.with_name(f"{path.name}.reserve")
        keep_room(self._reserve, _RESERVE_BYTES)
        self._writer = ThreadPoolExecutor(1, "quire-database-writer")
        self._reader = ThreadPoolExecutor(1, "quire-database-reader")
        self._writing = self._writer.submit(_opened, path, create=True).result()
        self._reading = self._reader.submit(_opened, path, create=False).result()

    def submit_write(self, work: Work[Made], *, frees: bool = False) -> Future[Made]:
        return self._writer.submit(self._written, work, frees)

    def _written(self, work: Work[Made], frees: bool) -> Made:
        try:
            return _in_transaction(self._writing, work)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_FULL or not frees:
                raise
        self._reserve.unlink(missing_ok=True)
        return _in_transaction(self._writing, work)

    def submit_read(self, work: Work[Made]) -> Future[Made]:
        return self._reader.submit(work, self._reading)

    async def write(self, work: Work[Made], *, frees: bool = False) -> Made:
        """The result of the work, when its changes are on disk. If the caller is cancelled, the
        change is still made. Work that `frees` room is possible on a full disk, too."""
        try:
            return await asyncio.wrap_future(self.submit_write(work, frees=frees))
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:  # after ten seconds of waiting
                why = "another program holds the server's database; try again later"
                raise server_error(why, code="unavailable", status=503, retry=True) from None
            if error.sqlite_errorcode != sqlite3.SQLITE_FULL:
                raise
            raise disk_full() from None

    async def keep_room(self) -> None:
        """Make the reserve again after something was freed, unless it is in use."""
        if not self._reserve.exists():
            await asyncio.wrap_future(self._writer.submit(keep_room, self._reserve, _RESERVE_BYTES))

    async def read(self, work: Work[Made]) -> Made:
        return await asyncio.wrap_future(self.submit_read(work))

    def close(self) -> None:
        """Finish what was begun and close the file; a second call does nothing."""
        for executor, connection in ((self._reader, self._reading), (self._writer, self._writing)):
            try:
                executor.submit(connection.close)
            except RuntimeError:  # it was closed before
                continue
            executor.shutdown()


def _opened(path: Path, *, create: bool) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, timeout=10.0)
    connection.row_factory = sqlite3.Row
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        if create:
            path.chmod(0o600)
            _in_transaction(connection, _create)
    except sqlite3.DatabaseError as error:
        connection.close()
        raise CorruptJob(
            f"{path} does not read as the server's database ({error}). Put it back from a copy, or "
            "give another data folder."
        ) from None
    return connection


def _create(connection: sqlite3.Connection) -> None:
    [found] = connection.execute("PRAGMA user_version").fetchone()
    if not 0 <= found <= VERSION:
        raise sqlite3.DatabaseError(f"its version is {found}, this server writes {VERSION}")
    for step in _STEPS[found:]:
        for statement in step.split(";\n"):
            connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {VERSION}")


def _in_transaction(connection: sqlite3.Connection, work: Work[Made]) -> Made:
    connection.execute("BEGIN IMMEDIATE")
    try:
        made = work(connection)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # on a full disk SQLite rolls it back by itself
            connection.execute("ROLLBACK")
        raise
    return made
