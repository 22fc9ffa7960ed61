"""Health checks, the version, the list of models, and metrics for Prometheus."""

from __future__ import annotations

import time
from typing import Literal, TypedDict

from starlette.requests import Request
from starlette.responses import Response

from quire import __version__
from quire.openai_api.errors import not_found
from quire.params.rules import show
from quire.server.metrics import CONTENT_TYPE
from quire.server.paging import ListObject, list_object
from quire.server.replies import json_response
from quire.server.route import ApiRoute
from quire.server.services import Services


class Version(TypedDict):
    version: str


class ModelObject(TypedDict):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int | None  # not known while it loads
    # Fields for Anthropic's clients, which read the same list.
    type: Literal["model"]
    display_name: str
    created_at: str
    max_input_tokens: int | None
    max_tokens: int | None
    lifecycle: Literal["active"]


def routes(services: Services) -> list[ApiRoute]:
    created = int(time.time())

    async def health(request: Request) -> Response:
        """200 while requests are answered; 503 while it loads, restarts or drains."""
        return Response(status_code=200 if services.engine.state == "ready" else 503)

    async def live(request: Request) -> Response:
        return Response(status_code=200)

    async def version(request: Request) -> Response:
        ours: Version = {"version": __version__}
        return json_response(ours)

    async def metrics(request: Request) -> Response:
        return Response(services.engine.metrics_text(), media_type=CONTENT_TYPE)

    async def models(request: Request) -> Response:
        listed = [_model(services, name, created) for name in services.names]
        return json_response(list_object(listed, has_more=False))

    async def model(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in services.names:
            raise not_found(f"the model {show(name)} is not served here", code="model_not_found")
        return json_response(_model(services, name, created))

    return [
        ApiRoute("GET", "/health", health, refusals=[503], answers=()),
        ApiRoute("GET", "/live", live, answers=()),
        ApiRoute("GET", "/version", version, shape=Version),
        ApiRoute("GET", "/metrics", metrics, answers=("text/plain",)),
        ApiRoute("GET", "/v1/models", models, shape=ListObject[ModelObject]),
        ApiRoute("GET", "/v1/models/{name:path}", model, refusals=[404], shape=ModelObject),
    ]


def _model(services: Services, name: str, created: int) -> ModelObject:
    longest = services.engine.facts.get("max_model_len")
    is_adapter = name in services.settings.lora or name in services.adapters.loaded
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "quire",
        "root": services.settings.names[0],
        "parent": services.settings.names[0] if is_adapter else None,
        "max_model_len": longest,
        "type": "model",
        "display_name": name,
        "created_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(created)),
        "max_input_tokens": longest,
        "max_tokens": longest,
        "lifecycle": "active",
    }
