"""Errors in the form that Anthropic's clients read."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

from quire.openai_api.errors import ApiError

# A server that loads, restarts or stops: Anthropic's clients know this as "overloaded".
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
# With these details clients work without `thread`: they send the whole conversation each time.
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
    """The status that Anthropic's API has for a status of ours."""
    return _STATUS.get(status, status)


def error_body(error: ApiError, request_id: str) -> MessageErrorBody:
    status = status_of(error.status)
    other = "invalid_request_error" if status < 500 else "api_error"
    refusal: MessageRefusal = {"type": _TYPES.get(status, other), "message": _message(error)}
    if error.code == "not_supported" and error.param in _DETAILS:
        refusal["details"] = _DETAILS[error.param]
    return {"type": "error", "error": refusal, "request_id": request_id}


def _message(error: ApiError) -> str:
    """The message, with the name of the field, which has no place of its own. For a prompt that is
    too long it has the words that agents search for to shorten it."""
    if error.code == "context_length_exceeded":
        return f"prompt is too long: {error.message}"
    if error.param is None or error.param in error.message:
        return error.message
    return f"{error.param}: {error.message}"
