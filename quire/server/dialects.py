"""The form of error answers: OpenAI's, or Anthropic's if the path is one of messages or a header
names a version of that API."""

from __future__ import annotations

from typing import Any

from starlette.types import Scope

from quire.anthropic_api.errors import error_body, status_of
from quire.openai_api.errors import ApiError
from quire.openai_api.fields import MESSAGES

_VERSION = b"anthropic-version"


def is_anthropic(scope: Scope) -> bool:
    return scope["path"].startswith(MESSAGES) or any(
        name == _VERSION for name, _ in scope["headers"]
    )


def refusal(error: ApiError, scope: Scope) -> tuple[int, Any]:
    """The status and the body of an error."""
    if is_anthropic(scope):
        return status_of(error.status), error_body(error, scope["quire.request_id"])
    return error.status, error.body()
