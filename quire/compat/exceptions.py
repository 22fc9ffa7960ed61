"""quire's errors under the names scripts catch; errors.py draws the whole tree."""

from __future__ import annotations

from quire.errors import InvalidRequest as VLLMValidationError
from quire.errors import ModelNotFound as VLLMNotFoundError
from quire.errors import QuireError as VLLMError

__all__ = ["VLLMError", "VLLMNotFoundError", "VLLMValidationError"]
