"""The description of the API as OpenAPI 3.1, made from the routes themselves, their tables of
fields and their lists of refusals, so that nothing is written twice."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

import msgspec

from quire import __version__
from quire.anthropic_api.errors import MessageErrorBody, status_of
from quire.openai_api.errors import ErrorBody
from quire.openai_api.fields import MESSAGES
from quire.server.guard import is_open
from quire.server.protocol import PROTOCOL_REFUSALS
from quire.server.replies import JSON
from quire.server.route import ApiRoute

PATH = "/openapi.json"
_KEY = "key"
_REFUSAL, _MESSAGE_REFUSAL = "Refusal", "MessageRefusal"


def description(routes: Iterable[ApiRoute], names: Sequence[str], *, keys: bool) -> dict[str, Any]:
    """`names` are those that the model is served under; `keys`: whether callers need one."""
    routes = list(routes)
    [error, message_error, *shapes], schemas = msgspec.json.schema_components(
        (ErrorBody, MessageErrorBody, *(shape for route in routes for shape in route.shapes)),
        ref_template="#/components/schemas/{name}",
    )
    left = iter(shapes)  # in the order of the routes
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        answer = [next(left) for _ in route.shapes]
        operation = _operation(route, answer, names, needs_key=keys and not is_open(route.path))
        paths.setdefault(route.path_format, {})[route.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "quire", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": {
                name: {"description": "The error says why.", "content": {JSON: {"schema": schema}}}
                for name, schema in ((_REFUSAL, error), (_MESSAGE_REFUSAL, message_error))
            },
            "securitySchemes": {_KEY: {"type": "http", "scheme": "bearer"}} if keys else {},
        },
    }


def _operation(
    route: ApiRoute, shapes: Sequence[Any], names: Sequence[str], *, needs_key: bool
) -> dict[str, Any]:
    path = [(name, "path", {"type": "string"}) for name in route.param_convertors]
    query = [(name, "query", dict(schema)) for name, schema in route.query.items()]
    operation: dict[str, Any] = {
        "operationId": re.sub("[^a-z0-9]+", "_", f"{route.method}{route.path}".lower()).strip("_"),
        "parameters": [
            {"name": name, "in": place, "required": place == "path", "schema": schema}
            for name, place, schema in [*path, *query]
        ],
        "responses": _responses(route, shapes, needs_key=needs_key),
        "security": [{_KEY: []}] if needs_key else [],
    }
    if route.content:
        content = {
            kind: {"schema": _served(schema, route, names)}
            for kind, schema in route.content.items()
        }
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _responses(route: ApiRoute, shapes: Sequence[Any], *, needs_key: bool) -> dict[str, Any]:
    refusals = route.refusals | PROTOCOL_REFUSALS | {403} | ({401} if needs_key else set())
    shape = shapes[0] if len(shapes) == 1 else {"anyOf": [*shapes]}
    answers = {kind: {"schema": shape} if kind == JSON else {} for kind in route.answers}
    responses: dict[str, Any] = {"200": {"description": "OK", "content": answers}}
    refusal = _REFUSAL
    if route.path.startswith(MESSAGES):
        # Invalid HTTP is refused before the path is read, in OpenAI's form.
        refusal, refusals = _MESSAGE_REFUSAL, frozenset(map(status_of, refusals))
    for status in sorted(refusals):
        # A failed health check has a status and no body.
        is_bare = not route.answers and status in route.refusals
        responses[str(status)] = (
            {"description": HTTPStatus(status).phrase}
            if is_bare
            else {"$ref": f"#/components/responses/{refusal}"}
        )
    return responses


def _served(schema: Mapping[str, Any], route: ApiRoute, names: Sequence[str]) -> dict[str, Any]:
    """The schema of a body, with the names of this server's model."""
    if "model" not in schema["properties"]:
        return dict(schema)
    model = {**schema["properties"]["model"], "enum": [*names]}
    required = ["model", *schema["required"]] if route.needs_model else schema["required"]
    return {**schema, "properties": {**schema["properties"], "model": model}, "required": required}
