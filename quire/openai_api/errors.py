"""ApiError: the error of a refused request, in the form that OpenAI's clients read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypedDict

from quire.errors import QuireError

INVALID, SERVER = "invalid_request_error", "server_error"
_PLACE = re.compile(r"\b(messages\[\d+\])(\.content\[\d+\])?")  # place of a message or its part
NO_RETRY = (("x-should-retry", "false"),)  # clients try 408, 409, 429 and 500 again without it


class Refusal(TypedDict):
    """All four fields are always there: clients read them without a check."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(TypedDict):
    error: Refusal


class ApiError(QuireError):
    """A refusal with its status. `code` is a word for programs, `param` the field at fault."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        type: str = INVALID,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code = status, message, code
        self.param, self.type, self.headers = param, type, headers

    def named(self, fields: Mapping[str, str]) -> ApiError:
        """This error with the body's own names for `param` and for places of messages: `fields` has
        the names that differ."""
        message = _PLACE.sub(
            lambda found: fields.get(found[0], fields.get(found[1], found[1]) + (found[2] or "")),
            self.message,
        )
        param = fields.get(self.param or "", self.param)
        if message.startswith(f"{self.param} "):
            message = f"{param}{message.removeprefix(str(self.param))}"
        self.message, self.param, self.args = message, param, (message,)
        return self

    def body(self) -> ErrorBody:
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.code,
            }
        }


def bad(message: str, *, param: str | None = None, code: str | None = None) -> ApiError:
    """400: the request cannot mean anything."""
    return ApiError(400, message, code=code, param=param)


def not_supported(message: str, *, param: str | None = None) -> ApiError:
    """400: the request is valid, but quire or this server does not support it."""
    return ApiError(400, message, code="not_supported", param=param)


def not_found(message: str, *, param: str | None = None, code: str = "not_found") -> ApiError:
    return ApiError(404, message, code=code, param=param)


def too_long(max_model_len: int, why: str, *, param: str | None = None) -> ApiError:
    """400: more tokens than the model takes. Clients search the message for its first words."""
    return ApiError(
        400,
        f"This model's maximum context length is {max_model_len} tokens. However, {why}",
        code="context_length_exceeded",
        param=param,
    )


def server_error(
    message: str, *, code: str | None = None, status: int = 500, retry: bool = False
) -> ApiError:
    """500: a failure of the server."""
    headers = () if retry else NO_RETRY
    return ApiError(status, message, code=code, type=SERVER, headers=headers)
