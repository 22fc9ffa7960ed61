"""The routes of files, uploads, batches and the page."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from quire.openai_api.errors import ApiError
from quire.server import batches, files
from quire.server.batch_bodies import NEW_BATCH, new_batch, read_new_batch
from quire.server.batch_engine import BatchEngine
from quire.server.batch_metrics import BatchMetrics
from quire.server.batch_service import BatchService
from quire.server.batches import BatchObject
from quire.server.database import WRITE_REFUSALS
from quire.server.file_routes import FileRoutes
from quire.server.message_batch_routes import MessageBatchRoutes
from quire.server.page_routes import PageRoutes
from quire.server.paging import PAGE_REFUSALS, ListObject, list_object, page_asked, page_query
from quire.server.reading import JSON_REFUSALS, read_json
from quire.server.replies import json_response
from quire.server.route import ApiRoute
from quire.server.services import Services, key_of
from quire.server.upload_routes import UploadRoutes

_PAGE = {"default": 20, "most": 100}


def routes(services: Services, stored: BatchService) -> list[ApiRoute]:
    model = services.settings.names[0]
    return [
        *FileRoutes(stored).routes(),
        *UploadRoutes(stored).routes(),
        *BatchRoutes(stored, model).routes(),
        *MessageBatchRoutes(stored, model).routes(),
        *PageRoutes(stored, services).routes(),
    ]


@asynccontextmanager
async def running(services: Services, stored: BatchService) -> AsyncIterator[None]:
    """Batches run as long as the server does."""
    await stored.start(BatchEngine(services))
    services.engine.add_metrics(BatchMetrics(stored, services.settings.names[0]))
    try:
        yield
    finally:
        await stored.stop()


class BatchRoutes:
    def __init__(self, service: BatchService, model: str) -> None:
        self._service, self._model = service, model

    def routes(self) -> list[ApiRoute]:
        one = "/v1/batches/{batch_id}"
        make = JSON_REFUSALS | WRITE_REFUSALS | {404, 429}
        end = WRITE_REFUSALS | {400, 404}
        query = page_query(**_PAGE)
        return [
            ApiRoute(
                *("POST", "/v1/batches", self.created),
                body=NEW_BATCH,
                refusals=make,
                shape=BatchObject,
            ),
            ApiRoute(
                *("GET", "/v1/batches", self.listed),
                query=query,
                refusals=PAGE_REFUSALS,
                shape=ListObject[BatchObject],
            ),
            ApiRoute("GET", one, self.found, refusals=[404], shape=BatchObject),
            ApiRoute("POST", f"{one}/cancel", self.cancelled, refusals=end, shape=BatchObject),
        ]

    async def created(self, request: Request) -> Response:
        """Answers when the batch is durable, before its lines are checked."""
        given = read_new_batch(await read_json(request))
        file = await self._input(key_of(request), given["input_file_id"])
        batch = new_batch(
            given,
            key_id=key_of(request),
            file=file,
            model=self._model,
            storage=self._service.storage.new_name(),
        )
        # Checked again inside the transaction: the file may have been deleted meanwhile.
        claim = partial(files.find, key_id=batch.key_id, file_id=file.id)
        await self._service.create(batch, claim)
        return json_response(self._service.as_object(batch))

    async def _input(self, key_id: str, file_id: str) -> files.StoredFile:
        try:
            return await self._service.database.read(
                partial(files.find, key_id=key_id, file_id=file_id)
            )
        except ApiError as missing:
            message = "there is no such file; upload the batch's input with purpose batch first"
            raise ApiError(404, message, code=missing.code, param="input_file_id") from None

    async def listed(self, request: Request) -> Response:
        page = page_asked(request.query_params, **_PAGE)
        found, has_more = await self._service.database.read(
            lambda connection: batches.page_of(connection, key_of(request), page)
        )
        made = [self._service.as_object(batch) for batch in found]
        return json_response(list_object(made, has_more))

    async def found(self, request: Request) -> Response:
        batch = await self._service.database.read(
            partial(batches.find, key_id=key_of(request), batch_id=request.path_params["batch_id"])
        )
        return json_response(self._service.as_object(batch))

    async def cancelled(self, request: Request) -> Response:
        batch = await self._service.cancel(key_of(request), request.path_params["batch_id"])
        return json_response(self._service.as_object(batch))
