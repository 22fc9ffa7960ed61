"""/v1/uploads: a file that comes in parts, each of them durable when it is acknowledged."""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from quire.base.system import write_all
from quire.openai_api.errors import bad
from quire.openai_api.field import checked_fields, plain_body
from quire.server import files, uploads
from quire.server.batch_service import BatchService
from quire.server.database import WRITE_REFUSALS
from quire.server.file_routes import BATCH_LIFE, insert_within, limits_of
from quire.server.files import StoredFile
from quire.server.ids import UPLOAD, new_id
from quire.server.multipart import FormReader, form_schema
from quire.server.reading import JSON_REFUSALS, read_json
from quire.server.receiving import FORM_REFUSALS, Limits, receive
from quire.server.replies import json_response
from quire.server.route import ApiRoute
from quire.server.services import key_of
from quire.server.storage import Storage
from quire.server.uploads import Part, PartObject, Upload, UploadObject

_NEW = plain_body(
    [
        ("filename", "text", "At most 1,000 characters."),
        ("purpose", "text", f"One of {', '.join(files.PURPOSES)}."),
        ("bytes", "a whole number", "How many the whole file has."),
        ("mime_type", "text", "At most 1,000 characters."),
    ],
    [("expires_after", "an object", "`anchor`: created_at, and `seconds`.")],
)
_WHOLE = plain_body(
    [("part_ids", "a list", "In their order.")], [("md5", "text", "Of the whole file.")]
)
_COPIED = 1 << 20


class UploadRoutes:
    def __init__(self, service: BatchService) -> None:
        self._service = service

    def routes(self) -> list[ApiRoute]:
        one = "/v1/uploads/{upload_id}"
        part = form_schema(file="data", known=(), required=())
        write = JSON_REFUSALS | WRITE_REFUSALS
        new, end = write | {429}, write | {404}
        return [
            ApiRoute(
                *("POST", "/v1/uploads", self.begun), body=_NEW, refusals=new, shape=UploadObject
            ),
            ApiRoute(
                *("POST", f"{one}/parts", self.added),
                form=part,
                refusals=FORM_REFUSALS | {404},
                shape=PartObject,
            ),
            ApiRoute(
                *("POST", f"{one}/complete", self.completed),
                body=_WHOLE,
                refusals=end,
                shape=UploadObject,
            ),
            ApiRoute(
                *("POST", f"{one}/cancel", self.cancelled),
                refusals=WRITE_REFUSALS | {400, 404},
                shape=UploadObject,
            ),
        ]

    async def begun(self, request: Request) -> Response:
        given = checked_fields(_NEW, await read_json(request))
        upload = _new_upload(key_of(request), given)
        limits = await limits_of(self._service, upload.key_id)
        limits.check(upload.bytes)
        await self._service.database.write(partial(uploads.insert, upload=upload))
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
        """Join the parts to one file, which is durable before the upload counts as completed."""
        upload = await self._pending(request)
        given = checked_fields(_WHOLE, await read_json(request))
        wanted, md5 = given["part_ids"], given.get("md5")
        if not wanted:
            raise bad("part_ids has at least one id of a part", param="part_ids")
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
        done: UploadObject = {**upload.as_object(file.as_object()), "status": "completed"}
        return json_response(done)

    async def cancelled(self, request: Request) -> Response:
        upload = await self._pending(request)
        gone = await self._service.database.write(
            lambda connection: uploads.end(connection, upload, "cancelled")
        )
        await self._remove(gone)
        ended: UploadObject = {**upload.as_object(), "status": "cancelled"}
        return json_response(ended)

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


def _new_upload(key_id: str, given: Mapping[str, Any]) -> Upload:
    for name in ("filename", "mime_type"):
        if len(given[name]) > 1000:
            raise bad(f"{name} has at most 1,000 characters", param=name)
    if given["bytes"] < 1:
        raise bad("bytes is how many the whole file has", param="bytes")
    purpose = files.checked_purpose(given["purpose"])
    lifetime = BATCH_LIFE if purpose == "batch" else None
    if (after := given.get("expires_after")) is not None:
        lifetime = files.checked_lifetime(after.get("anchor"), after.get("seconds"))
    now = int(time.time())
    return Upload(
        id=new_id(UPLOAD),
        key_id=key_id,
        filename=files.checked_name(given["filename"]),
        purpose=purpose,
        mime_type=given["mime_type"],
        bytes=given["bytes"],
        lifetime=lifetime,
        created_at=now,
        expires_at=now + uploads.LIFE,
    )


def _joined(storage: Storage, name: str, parts: Sequence[Part], md5: str | None) -> str:
    """Write the parts one after the other into a new file; returns the hash of the whole."""
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
    """Replace the parts by the file in one transaction: the quota must not count both."""
    gone = uploads.end(connection, upload, "completed", file.id)
    insert_within(connection, file, quota)
    return gone
