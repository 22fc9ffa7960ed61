"""/v1/files: uploading, listing, reading and deleting files."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from functools import partial
from pathlib import Path
from typing import Literal, TypedDict
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from quire.openai_api.errors import not_found
from quire.server import files
from quire.server.batch_service import BatchService
from quire.server.database import WRITE_REFUSALS
from quire.server.files import FileObject, StoredFile
from quire.server.limits import SLOW_READER_SECONDS
from quire.server.multipart import Form, FormReader, form_schema
from quire.server.paging import (
    PAGE_REFUSALS,
    ListObject,
    given,
    list_object,
    page_asked,
    page_query,
)
from quire.server.receiving import FORM_REFUSALS, Limits, Received, quota_exceeded, receive
from quire.server.replies import json_response
from quire.server.route import ApiRoute
from quire.server.services import key_of

MOST_LISTED = 10_000
BATCH_LIFE = 30 * 86400  # seconds that a batch's input stays where nothing else is said
_ANCHOR, _SECONDS = "expires_after[anchor]", "expires_after[seconds]"
_KNOWN = ("purpose", _ANCHOR, _SECONDS)
_PAGE = {"default": MOST_LISTED, "most": MOST_LISTED}
BYTES = "application/octet-stream"
_PIECE = 256 << 10


class DeletedFile(TypedDict):
    id: str
    object: Literal["file"]
    deleted: Literal[True]


class FileRoutes:
    def __init__(self, service: BatchService) -> None:
        self._service = service

    def routes(self) -> list[ApiRoute]:
        one = "/v1/files/{file_id}"
        form = form_schema(file="file", known=_KNOWN, required=("purpose",))
        query = {**page_query(**_PAGE), "purpose": {"type": "string"}}
        end = WRITE_REFUSALS | {400, 404}
        return [
            ApiRoute(
                *("POST", "/v1/files", self.upload),
                form=form,
                refusals=FORM_REFUSALS,
                shape=FileObject,
            ),
            ApiRoute(
                *("GET", "/v1/files", self.listed),
                query=query,
                refusals=PAGE_REFUSALS,
                shape=ListObject[FileObject],
            ),
            ApiRoute("GET", one, self.found, refusals=[404], shape=FileObject),
            ApiRoute("DELETE", one, self.deleted, refusals=end, shape=DeletedFile),
            ApiRoute("GET", f"{one}/content", self.content, refusals=[404], answers=(BYTES,)),
        ]

    async def upload(self, request: Request) -> Response:
        """Answers when the bytes, the name and the database row are durable."""
        key_id = key_of(request)
        reader = FormReader(
            request.headers.get("content-type", ""),
            file="file",
            known=_KNOWN,
        )
        limits = await limits_of(self._service, key_id)
        received = await receive(request, reader, self._service.storage, limits)
        try:
            file = await self._kept(key_id, received)
        except BaseException:
            await asyncio.to_thread(self._service.storage.remove_file, received.storage)
            raise
        return json_response(file.as_object())

    async def _kept(self, key_id: str, received: Received) -> StoredFile:
        purpose = files.checked_purpose(received.form.fields.get("purpose"))
        file = files.new_file(
            key_id=key_id,
            storage=received.storage,
            filename=files.checked_name(received.form.filename),
            purpose=purpose,
            bytes=received.size,
            sha256=received.sha256,
            lifetime=_lifetime(received.form, purpose),
        )
        await self._service.database.write(
            partial(insert_within, file=file, quota=self._service.settings.quota_bytes)
        )
        return file

    async def listed(self, request: Request) -> Response:
        page = page_asked(request.query_params, **_PAGE)
        purpose = given(request.query_params, "purpose")
        found, has_more = await self._service.database.read(
            lambda connection: files.page_of(connection, key_of(request), page, purpose)
        )
        return json_response(list_object([file.as_object() for file in found], has_more))

    async def found(self, request: Request) -> Response:
        return json_response((await self._find(request)).as_object())

    async def deleted(self, request: Request) -> Response:
        file = await self._service.delete_file(key_of(request), request.path_params["file_id"])
        deleted: DeletedFile = {"id": file.id, "object": "file", "deleted": True}
        return json_response(deleted)

    async def content(self, request: Request) -> Response:
        file = await self._find(request)
        path = self._service.storage.file(file.storage)
        return await download(path, file.filename, BYTES)

    async def _find(self, request: Request) -> StoredFile:
        return await self._service.database.read(
            partial(files.find, key_id=key_of(request), file_id=request.path_params["file_id"])
        )


async def limits_of(service: BatchService, key_id: str) -> Limits:
    """How many bytes this key may upload now."""
    room = await asyncio.to_thread(service.storage.free_bytes)
    if (quota := service.settings.quota_bytes) is not None:
        used = await service.database.read(partial(files.used_bytes, key_id=key_id))
        room = min(room, quota - used)
    limits = Limits(service.settings.max_file_bytes, room)
    limits.check(1)
    return limits


def insert_within(connection: sqlite3.Connection, file: StoredFile, quota: int | None) -> None:
    """Insert the row; refused if other uploads have used up the quota meanwhile."""
    if quota is not None and files.used_bytes(connection, file.key_id) + file.bytes > quota:
        raise quota_exceeded()
    files.insert(connection, file)


def _lifetime(form: Form, purpose: str) -> int | None:
    anchor, seconds = form.fields.get(_ANCHOR), form.fields.get(_SECONDS)
    if anchor is None and seconds is None:
        return BATCH_LIFE if purpose == "batch" else None
    return files.checked_lifetime(anchor, seconds)


class DownloadResponse(Response):
    """A file, sent piece by piece. It can be read to its end even if it is deleted meanwhile. A
    client that reads nothing for long is disconnected, to free the file and the connection."""

    def __init__(self, number: int, filename: str, media_type: str, *, inline: bool) -> None:
        kind = "inline" if inline else "attachment"
        headers = {
            "content-length": str(os.fstat(number).st_size),
            "content-disposition": f"{kind}; filename*=utf-8''{quote(filename, safe='')}",
            "x-content-type-options": "nosniff",
            "cache-control": "no-store",
        }
        super().__init__(headers=headers, media_type=media_type)
        self._number = number

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        try:
            await send(start)
            while piece := await asyncio.to_thread(os.read, self._number, _PIECE):
                async with asyncio.timeout(SLOW_READER_SECONDS):
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        except TimeoutError:  # to return before the end closes the connection
            return
        finally:
            os.close(self._number)


async def download(
    path: Path, filename: str, media_type: str, *, inline: bool = False
) -> DownloadResponse:
    try:
        number = await asyncio.to_thread(os.open, path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise not_found("the file is gone", param="file_id") from None
    return DownloadResponse(number, filename, media_type, inline=inline)
