"""Refusals as Anthropic's clients read them."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

from quire.openai_api.errors import ApiError

# A server that loads, restarts or stops is what their clients know as one with too much to do.
_STATUS = {503: 529}
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
# Clients that are told so get along without: tools are run over a conversation that the server
# keeps, or else over one that is sent whole.
_DETAILS = {"thread": {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}}


class MessageRefusal(TypedDict):
    type: str
    message: str
    details: NotRequired[dict[str, Any]]


class MessageErrorBody(TypedDict):
    type: Literal["error"]
    error: MessageRefusal
    request_id: str


def status_of(status: int) -> int:
    """What a status of ours is to their clients."""
    return _STATUS.get(status, status)


def error_body(error: ApiError, request_id: str) -> MessageErrorBody:
    status = status_of(error.status)
    other = "invalid_request_error" if status < 500 else "api_error"
    refusal: MessageRefusal = {"type": _TYPES.get(status, other), "message": _message(error)}
    if error.code == "not_supported" and error.param in _DETAILS:
        refusal["details"] = _DETAILS[error.param]
    return {"type": "error", "error": refusal, "request_id": request_id}


def _message(error: ApiError) -> str:
    """There is no place for the field but here. Agents look for words of a prompt that is too
    long, and make it shorter."""
    if error.code == "context_length_exceeded":
        return f"prompt is too long: {error.message}"
    if error.param is None or error.param in error.message:
        return error.message
    return f"{error.param}: {error.message}"
