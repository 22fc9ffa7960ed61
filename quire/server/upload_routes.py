"""/v1/uploads: a file that comes in parts, each of them durable when it is acknowledged."""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.openai_api.errors import bad
from quire.server import files, uploads
from quire.server.batch_bodies import check_fields
from quire.server.batch_service import BatchService
from quire.server.file_routes import BATCH_LIFE, insert_within, limits_of
from quire.server.files import StoredFile
from quire.server.multipart import FormReader
from quire.server.reading import read_json
from quire.server.receiving import Limits, receive
from quire.server.replies import json_response
from quire.server.services import key_of
from quire.server.storage import Storage, write_all
from quire.server.uploads import Part, Upload

_FIELDS = ("filename", "purpose", "bytes", "mime_type", "expires_after")
_COPIED = 1 << 20


class UploadRoutes:
    def __init__(self, service: BatchService) -> None:
        self._service = service

    def routes(self) -> list[Route]:
        return [
            Route("/v1/uploads", self.begun, methods=["POST"]),
            Route("/v1/uploads/{upload_id}/parts", self.added, methods=["POST"]),
            Route("/v1/uploads/{upload_id}/complete", self.completed, methods=["POST"]),
            Route("/v1/uploads/{upload_id}/cancel", self.cancelled, methods=["POST"]),
        ]

    async def begun(self, request: Request) -> Response:
        given = check_fields(await read_json(request), _FIELDS)
        wanted = _wanted(given)
        limits = await limits_of(self._service, key_of(request))
        limits.check(wanted["bytes"])
        upload = await self._service.database.write(
            lambda connection: uploads.begin(connection, key_id=key_of(request), **wanted)
        )
        return json_response(upload.as_object())

    async def added(self, request: Request) -> Response:
        key_id, upload = key_of(request), await self._pending(request)
        reader = FormReader(request.headers.get("content-type", ""), file="data", known=())
        limits = await limits_of(self._service, key_id)
        most = Limits(uploads.LARGEST_PART, limits.room)
        received = await receive(request, reader, self._service.storage, most)
        try:
            part = await self._service.database.write(
                lambda connection: uploads.add_part(
                    connection, key_id, upload.id, received.storage, received.size
                )
            )
        except BaseException:
            await asyncio.to_thread(self._service.storage.remove_file, received.storage)
            raise
        return json_response(part)

    async def completed(self, request: Request) -> Response:
        """The parts become one file, which is durable before the upload says so."""
        upload = await self._pending(request)
        given = check_fields(await read_json(request), ("part_ids", "md5"))
        wanted, md5 = given.get("part_ids"), given.get("md5")
        if not isinstance(wanted, list) or not wanted:
            raise bad("part_ids is a list of ids of parts", param="part_ids")
        if md5 is not None and not isinstance(md5, str):
            raise bad("md5 is a text", param="md5")
        parts = await self._service.database.read(
            lambda connection: uploads.parts_of(connection, upload, wanted)
        )
        storage = self._service.storage
        name = storage.new_name()
        sha256 = await asyncio.to_thread(_joined, storage, name, parts, md5)
        file = files.new_file(
            key_id=upload.key_id,
            storage=name,
            filename=upload.filename,
            purpose=upload.purpose,
            bytes=upload.bytes,
            sha256=sha256,
            lifetime=upload.lifetime,
        )
        try:
            gone = await self._service.database.write(
                partial(
                    _complete,
                    upload=upload,
                    file=file,
                    quota=self._service.settings.quota_bytes,
                )
            )
        except BaseException:
            await asyncio.to_thread(storage.remove_file, name)
            raise
        await self._remove(gone)
        done = {**upload.as_object(file.as_object()), "status": "completed"}
        return json_response(done)

    async def cancelled(self, request: Request) -> Response:
        upload = await self._pending(request)
        gone = await self._service.database.write(
            lambda connection: uploads.end(connection, upload, "cancelled")
        )
        await self._remove(gone)
        return json_response({**upload.as_object(), "status": "cancelled"})

    async def _pending(self, request: Request) -> Upload:
        return await self._service.database.read(
            partial(
                uploads.find_pending,
                key_id=key_of(request),
                upload_id=request.path_params["upload_id"],
            )
        )

    async def _remove(self, names: Sequence[str]) -> None:
        for name in names:
            await asyncio.to_thread(self._service.storage.remove_file, name)


def _wanted(given: Mapping[str, Any]) -> dict[str, Any]:
    for name in ("filename", "mime_type"):
        if not isinstance(given.get(name), str) or len(given[name]) > 1000:
            raise bad(f"the body has no {name}, which is a short text", param=name)
    if type(size := given.get("bytes")) is not int or size < 1:
        raise bad("bytes is how many the whole file has", param="bytes")
    purpose = files.checked_purpose(given.get("purpose"))
    lifetime = BATCH_LIFE if purpose == "batch" else None
    if (after := given.get("expires_after")) is not None:
        if not isinstance(after, Mapping):
            raise bad("expires_after has an anchor and seconds", param="expires_after")
        lifetime = files.checked_lifetime(after.get("anchor"), after.get("seconds"))
    return {
        "filename": files.checked_name(given["filename"]),
        "purpose": purpose,
        "mime_type": given["mime_type"],
        "bytes": size,
        "lifetime": lifetime,
    }


def _joined(storage: Storage, name: str, parts: Sequence[Part], md5: str | None) -> str:
    """Write the parts one after the other under a new name; the hash of the whole."""
    digest, wanted = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
    with storage.receiving(name) as number:
        for part in parts:
            with open(storage.file(part.storage), "rb") as source:
                while piece := source.read(_COPIED):
                    digest.update(piece)
                    wanted.update(piece)
                    write_all(number, piece)
        if md5 is not None and wanted.hexdigest() != md5.lower():
            raise bad("the parts do not have this md5", param="md5")
        storage.keep(name, number)
    return digest.hexdigest()


def _complete(
    connection: sqlite3.Connection, upload: Upload, file: StoredFile, quota: int | None
) -> list[str]:
    """Parts give way to the file in one transaction, so the quota counts one of the two."""
    gone = uploads.end(connection, upload, "completed", file.id)
    insert_within(connection, file, quota)
    return gone
