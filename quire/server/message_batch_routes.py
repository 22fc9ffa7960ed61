"""/v1/messages/batches: Anthropic's Message Batches, over the batches that every client has."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from quire.openai_api.errors import ApiError, bad, not_found
from quire.openai_api.fields import MESSAGES
from quire.server import batches, files
from quire.server.batch_service import BatchService
from quire.server.batches import StoredBatch
from quire.server.database import WRITE_REFUSALS
from quire.server.file_routes import BATCH_LIFE, download, insert_within, limits_of
from quire.server.ids import MESSAGE_BATCH, new_id
from quire.server.message_batch_input import NEW_MESSAGE_BATCH, Lines, receive_requests
from quire.server.message_batches import (
    BATCHES,
    DeletedMessageBatch,
    MessageBatch,
    message_batch,
)
from quire.server.paging import (
    PAGE_REFUSALS,
    ListObject,
    Page,
    given,
    list_object,
    page_asked,
    page_query,
)
from quire.server.reading import JSON_REFUSALS
from quire.server.replies import json_response
from quire.server.route import ApiRoute
from quire.server.services import key_of

LIFE = 86400  # seconds after which unanswered requests expire
_PAGE = {"default": 20, "most": 1000}
_KINDS = (MESSAGE_BATCH,)
_LINES = "application/x-jsonl"
# Headers that proxies add. Each proxy appends after a comma; the first value is the client's.
_FORWARDED = {
    name: re.compile(rf"({rule})(?:\s*,.*)?", re.ASCII)
    for name, rule in {
        "x-forwarded-proto": "https?",
        "x-forwarded-host": r"[\w.:\[\]-]+",
        "x-forwarded-prefix": r"(?:/[\w.~-]+)+/?",
    }.items()
}


class MessageBatchRoutes:
    def __init__(self, service: BatchService, model: str) -> None:
        self._service, self._model = service, model

    def routes(self) -> list[ApiRoute]:
        one = f"{BATCHES}/{{batch_id}}"
        end = WRITE_REFUSALS | {400, 404}
        query = {"limit": page_query(**_PAGE)["limit"]}
        query |= dict.fromkeys(("before_id", "after_id"), {"type": "string"})
        return [
            ApiRoute(
                *("POST", BATCHES, self.created),
                body=NEW_MESSAGE_BATCH,
                refusals=JSON_REFUSALS | WRITE_REFUSALS | {429},
                shape=MessageBatch,
            ),
            ApiRoute(
                *("GET", BATCHES, self.listed),
                query=query,
                refusals=PAGE_REFUSALS,
                shape=ListObject[MessageBatch],
            ),
            ApiRoute("GET", one, self.found, refusals=[404], shape=MessageBatch),
            ApiRoute("GET", f"{one}/results", self.results, refusals=[404], answers=(_LINES,)),
            ApiRoute("POST", f"{one}/cancel", self.cancelled, refusals=end, shape=MessageBatch),
            ApiRoute("DELETE", one, self.deleted, refusals=end, shape=DeletedMessageBatch),
        ]

    async def created(self, request: Request) -> Response:
        """Answers when the requests and the batch are durable."""
        service, key_id = self._service, key_of(request)
        limits = await limits_of(service, key_id)
        lines = await receive_requests(request, service.storage, limits)
        batch, file = self._new(key_id, lines)
        claim = partial(insert_within, file=file, quota=service.settings.quota_bytes)
        try:
            await service.create(batch, claim)
        except BaseException:
            await asyncio.to_thread(service.storage.remove_file, file.storage)
            raise
        return json_response(message_batch(batch, _address(request)))

    def _new(self, key_id: str, lines: Lines) -> tuple[StoredBatch, files.StoredFile]:
        name, now = new_id(MESSAGE_BATCH), int(time.time())
        file = files.new_file(
            key_id=key_id,
            storage=lines.storage,
            filename=f"{name}_input.jsonl",
            purpose="batch",
            bytes=lines.size,
            sha256=lines.sha256,
            lifetime=BATCH_LIFE,
        )
        batch = StoredBatch(
            id=name,
            key_id=key_id,
            storage=self._service.storage.new_name(),
            endpoint=MESSAGES,
            input_file_id=file.id,
            input_sha256=file.sha256,
            completion_window="24h",
            metadata=None,
            output_lifetime=None,
            model=self._model,
            created_at=now,
            expires_at=now + LIFE,
            total=lines.num_requests,
        )
        return batch, file

    async def listed(self, request: Request) -> Response:
        page, called = _page(request.query_params)
        try:
            found, has_more = await self._service.database.read(
                lambda connection: batches.page_of(connection, key_of(request), page, MESSAGES)
            )
        except ApiError as error:
            raise error.named({"after": called}) from None
        newest_first = found[::-1] if page.ascending else found
        made = [message_batch(batch, _address(request)) for batch in newest_first]
        return json_response(list_object(made, has_more))

    async def found(self, request: Request) -> Response:
        return json_response(message_batch(await self._find(request), _address(request)))

    async def _find(self, request: Request) -> StoredBatch:
        name = request.path_params["batch_id"]
        return await self._service.database.read(
            partial(batches.find, key_id=key_of(request), batch_id=name, kinds=_KINDS)
        )

    async def results(self, request: Request) -> Response:
        """The results, in the order of the requests."""
        batch = await self._find(request)
        if batch.output_file_id is None:
            why = "has not ended" if batch.is_live else "was lost before it had results"
            raise not_found(f"the batch {why}", param="batch_id")
        file = await self._service.database.read(
            partial(files.find, key_id=batch.key_id, file_id=batch.output_file_id)
        )
        return await download(self._service.storage.file(file.storage), file.filename, _LINES)

    async def cancelled(self, request: Request) -> Response:
        name = request.path_params["batch_id"]
        batch = await self._service.cancel(key_of(request), name, _KINDS)
        return json_response(message_batch(batch, _address(request)))

    async def deleted(self, request: Request) -> Response:
        name = request.path_params["batch_id"]
        batch = await self._service.delete(key_of(request), name, _KINDS)
        deleted: DeletedMessageBatch = {"id": batch.id, "type": "message_batch_deleted"}
        return json_response(deleted)


def _page(query: Mapping[str, str]) -> tuple[Page, str]:
    """The page of a query, and the id from which it is counted. A page before an id is read in
    ascending order from it."""
    limit = page_asked({"limit": query.get("limit", "")}, **_PAGE).limit
    before, after = given(query, "before_id"), given(query, "after_id")
    if before is not None and after is not None:
        raise bad("before_id and after_id exclude each other; give one", param="before_id")
    if before is not None:
        return Page(limit, before, ascending=True), "before_id"
    return Page(limit, after, ascending=False), "after_id"


def _address(request: Request) -> str:
    """The server's address as the client called it. Headers of a proxy tell what it changed (TLS,
    name, path). They may be forged, but the address goes only to the client that sent them."""
    scheme, host, prefix = (
        found[1].rstrip("/") if (found := rule.fullmatch(request.headers.get(name, ""))) else ""
        for name, rule in _FORWARDED.items()
    )
    return f"{scheme or request.url.scheme}://{host or request.url.netloc}{prefix}"
