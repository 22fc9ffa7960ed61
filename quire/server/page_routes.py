"""The page at `/`, what it asks for beside OpenAI's routes, and downloads by single-use links."""

from __future__ import annotations

from starlette.routing import Route

from quire.server.batch_service import BatchService
from quire.server.services import Services


class PageRoutes:
    def __init__(self, service: BatchService, services: Services) -> None:
        self._service, self._services = service, services

    def routes(self) -> list[Route]:
        return []
