"""The page at `/`, the routes that it uses beside OpenAI's, and downloads by single-use links."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import TypedDict

from starlette.requests import Request
from starlette.responses import Response

from quire.base.version import __version__
from quire.jobs.output.results import StoredRun
from quire.openai_api.errors import bad, not_found
from quire.server import batches, files
from quire.server.batch_service import BatchService
from quire.server.database import WRITE_REFUSALS
from quire.server.file_routes import BYTES, download
from quire.server.links import LIFE, Linked
from quire.server.page import page
from quire.server.replies import json_response
from quire.server.route import ApiRoute
from quire.server.services import Lane, Services, State, key_of

# A report has texts of clients and of a model, so it is shown in an origin of its own.
_APART = "sandbox allow-scripts allow-popups allow-downloads"


class LaneRows(TypedDict):
    running: int
    waiting: int


class EngineStatus(TypedDict):
    version: str
    model: str
    state: State
    lanes: dict[Lane, LaneRows]
    kv_use: float
    prompt_tokens: int
    output_tokens: int
    first_token_seconds: float | None
    restarts: int


class Link(TypedDict):
    url: str
    expires_in: int


class PageRoutes:
    def __init__(self, service: BatchService, services: Services) -> None:
        self._service, self._services = service, services
        self._reporting = asyncio.Semaphore(1)  # a report of a large batch takes a core

    def routes(self) -> list[ApiRoute]:
        report = "/v1/batches/{batch_id}/report"
        kinds, end = (BYTES, "text/html"), WRITE_REFUSALS | {400, 404}
        return [
            ApiRoute("GET", "/", self.shown, answers=("text/html",)),
            ApiRoute("GET", "/quire/status", self.status, shape=EngineStatus),
            ApiRoute("POST", "/v1/files/{file_id}/link", self.link, refusals=[404], shape=Link),
            ApiRoute("POST", report, self.report, refusals=end, shape=Link),
            ApiRoute("GET", "/download/{token}", self.followed, refusals=[404], answers=kinds),
        ]

    async def shown(self, request: Request) -> Response:
        made = page()
        return Response(made.html, headers=made.headers, media_type="text/html")

    async def status(self, request: Request) -> Response:
        """The state of the engine; nothing in it belongs to a single key."""
        stats = self._services.engine.stats()
        status: EngineStatus = {
            "version": __version__,
            "model": self._services.settings.names[0],
            "state": stats.state,
            "lanes": {
                "interactive": {"running": stats.running, "waiting": stats.waiting},
                "batch": {"running": stats.running_batch, "waiting": stats.waiting_batch},
            },
            "kv_use": stats.kv_use,
            "prompt_tokens": stats.prompt_tokens + stats.unfinished_prompt_tokens,
            "output_tokens": stats.output_tokens + stats.unfinished_output_tokens,
            "first_token_seconds": stats.first_token_seconds,
            "restarts": stats.restarts,
        }
        return json_response(status)

    async def link(self, request: Request) -> Response:
        file = await self._service.database.read(
            partial(files.find, key_id=key_of(request), file_id=request.path_params["file_id"])
        )
        path = self._service.storage.file(file.storage)
        return self._linked(Linked(path, file.filename, BYTES))

    async def report(self, request: Request) -> Response:
        """A link to a report of the batch with its results so far."""
        batch = await self._service.database.read(
            partial(batches.find, key_id=key_of(request), batch_id=request.path_params["batch_id"])
        )
        if batch.in_progress_at is None:
            raise bad("the batch has no rows to report on yet", param="batch_id")
        directory = self._service.storage.batch(batch.storage)
        target = self._service.storage.temporary()
        async with self._reporting:
            is_there = await asyncio.to_thread(_write_report, directory, target)
        if not is_there:
            raise not_found("the rows of this batch were deleted", param="batch_id")
        found = Linked(target, f"{batch.id}.html", "text/html", inline=True, temporary=True)
        return self._linked(found)

    def _linked(self, found: Linked) -> Response:
        token = self._service.links.make(found)
        link: Link = {"url": f"/download/{token}", "expires_in": int(LIFE)}
        return json_response(link)

    async def followed(self, request: Request) -> Response:
        found = self._service.links.take(request.path_params["token"])
        if found is None:
            raise not_found("this link was used before, or is older than a minute; get a new one")
        response = await download(found.path, found.filename, found.media_type, inline=found.inline)
        response.headers["referrer-policy"] = "no-referrer"
        if found.inline:
            response.headers["content-security-policy"] = _APART
        if found.temporary:
            await asyncio.to_thread(found.path.unlink, missing_ok=True)
        return response


def _write_report(directory: Path, target: Path) -> bool:
    from quire.report.page import write_report

    if not directory.exists():
        return False
    write_report([StoredRun.open(directory)], target)
    return True
