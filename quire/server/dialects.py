"""In whose words a client is refused: OpenAI's, or Anthropic's where it asks for a message, or says
which version of that API it speaks."""

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
    """The status and the body that say it."""
    if is_anthropic(scope):
        return status_of(error.status), error_body(error, scope["quire.request_id"])
    return error.status, error.body()
