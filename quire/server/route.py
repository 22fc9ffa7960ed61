"""ApiRoute: a route, with what the description of the API says of it (openapi.py).

Which refusals may come is said where a route is made, in sets that stand beside what raises them;
those of the guard and the protocol may come anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from starlette.routing import Route

from quire.openai_api.field import Body, body_schema
from quire.server.replies import JSON

EVENTS = "text/event-stream"


class ApiRoute(Route):
    """One method of one path. `form` is the schema of a form, where the body is none of JSON;
    `answers` are the kinds of content that a 200 may have, `shape` is the type of one of JSON;
    several where it may be any of them."""

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
