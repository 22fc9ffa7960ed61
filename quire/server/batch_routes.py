"""The routes of files and batches."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.routing import Route

from quire.server.services import Services


def routes(services: Services) -> list[Route]:
    return []


@asynccontextmanager
async def running(services: Services) -> AsyncIterator[None]:
    """Whatever lives as long as the server."""
    yield
