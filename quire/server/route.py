"""ApiRoute: a route with the facts that the description of the API needs (openapi.py).

Each route lists its possible refusals. The sets of them are defined beside the code that raises
them; refusals of the guard and of the protocol may come from any route.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from starlette.routing import Route

from quire.openai_api.field import Body, body_schema
from quire.server.replies import JSON

EVENTS = "text/event-stream"


class ApiRoute(Route):
    """One method of one path. `form` is the schema of a form, if the body is a form and not JSON.
    `answers` are the content types that a 200 may have; `shape` is the type of a JSON answer, or
    several possible types."""

    def __init__(
        self,
        method: str,
        path: str,
        endpoint: Callable[..., Any],
        *,
        body: Body | None = None,
        form: Mapping[str, Any] | None = None,
        query: Mapping[str, Mapping[str, Any]] | None = None,
        refusals: Iterable[int] = (),
        answers: tuple[str, ...] = (JSON,),
        shape: Any = (),
        needs_model: bool = False,
    ) -> None:
        super().__init__(path, endpoint, methods=[method])
        self.method, self.refusals, self.answers = method, frozenset(refusals), answers
        self.query, self.needs_model = query or {}, needs_model
        self.shapes: tuple[Any, ...] = shape if isinstance(shape, tuple) else (shape,)
        self.content: dict[str, Mapping[str, Any]] = {}
        if body is not None:
            self.content[JSON] = body_schema(body)
        if form is not None:
            self.content["multipart/form-data"] = form
