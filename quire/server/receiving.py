"""Writes the bytes of an upload to disk, with limits of size and time, and hashes them. A file is
durable when `receive` returns.

Another thread writes, in pieces of a mebibyte, so that a slow disk does not block other requests.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass

from starlette.requests import ClientDisconnect, Request

from quire.base.system import write_all
from quire.openai_api.errors import NO_RETRY, ApiError, bad, server_error
from quire.server.multipart import Form, FormReader
from quire.server.reading import refuse_encoded
from quire.server.storage import Storage
from quire.server.threads import run_uncancelled

FORM_REFUSALS = frozenset({400, 408, 413, 415, 507})  # with those of FormReader
_PIECE = 1 << 20
SLOWEST, GRACE = 64 << 10, 10.0  # bytes a second, after so many seconds
LONGEST_SILENCE = 30.0


@dataclass(frozen=True, slots=True)
class Limits:
    """The bytes that an upload may have: the limit for one file, and the rest of quota and disk."""

    most: int
    room: int
    what: str = "a file"

    def check(self, size: int) -> None:
        if size > self.most:
            raise ApiError(
                413,
                f"{self.what} has at most {self.most:,} bytes here",
                code="file_too_large",
                param="file" if self.what == "a file" else None,
            )
        if size > self.room:
            raise quota_exceeded()


def quota_exceeded() -> ApiError:
    return server_error(
        "there is no room left for this file; delete files that are no longer needed",
        code="quota_exceeded",
        status=507,
    )


@dataclass(frozen=True, slots=True)
class Received:
    """A file that is on disk under `storage`, but not yet in the database."""

    storage: str
    form: Form
    size: int
    sha256: str


async def receive(
    request: Request, reader: FormReader, storage: Storage, limits: Limits
) -> Received:
    """Store the file of a form. After a failure nothing is left on disk."""
    refuse_encoded(request)
    name = storage.new_name()
    with storage.receiving(name) as number:
        writer = Writer(number, limits)
        await write_body(request, writer, reader.feed)
        form = reader.finish()
        await run_uncancelled(storage.keep, name, number)
    return Received(name, form, writer.size, writer.sha256)


async def write_body(
    request: Request, writer: Writer, read: Callable[[bytes], Iterable[bytes]]
) -> None:
    """Write a body as it arrives, or the parts of it that `read` returns."""
    said = request.headers.get("content-length", "")
    if said.isascii() and said.isdigit():
        # The form around a file takes a few hundred bytes, which do not count.
        writer.limits.check(int(said[:18]) - (64 << 10))
    async for data in _timed(request):
        for piece in read(data):
            writer.add(piece)
        if writer.waiting >= _PIECE:
            await run_uncancelled(writer.write)
    await run_uncancelled(writer.write)


class Writer:
    """Writes bytes to a file: counts and hashes them, and collects them into large pieces."""

    def __init__(self, number: int, limits: Limits) -> None:
        self._number, self.limits = number, limits
        self._pieces: list[bytes] = []
        self._hash = hashlib.sha256()
        self.size = self.waiting = 0

    def add(self, piece: bytes) -> None:
        self.size += len(piece)
        self.waiting += len(piece)
        self.limits.check(self.size)
        self._pieces.append(piece)

    def write(self) -> None:
        data = b"".join(self._pieces)
        self._pieces, self.waiting = [], 0
        self._hash.update(data)
        write_all(self._number, data)

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()


async def _timed(request: Request) -> AsyncIterator[bytes]:
    """The pieces of the body; 408 for a client that sends nothing for long, or too slowly."""
    began, size = time.monotonic(), 0
    stream = request.stream()
    while True:
        try:
            async with asyncio.timeout(LONGEST_SILENCE):
                data = await anext(stream, None)
        except TimeoutError:
            raise _too_slow() from None
        except ClientDisconnect:
            raise bad("the upload ended before its file did") from None
        if data is None:
            return
        size += len(data)
        spent = time.monotonic() - began
        if spent > GRACE and size < SLOWEST * (spent - GRACE):
            raise _too_slow()
        yield data


def _too_slow() -> ApiError:
    return ApiError(
        408,
        f"an upload sends at least {SLOWEST >> 10} KiB a second",
        code="request_timeout",
        headers=NO_RETRY,
    )
