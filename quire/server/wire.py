"""What the engine's process says, read into types: one JSON object per line."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from quire.openai_api.outputs import Output


@dataclass(slots=True)
class Message:
    """Any of them; `kind` says which fields it has (child/__init__.py)."""

    kind: str
    id: int = -1
    rows: list[tuple[int, Output]] = field(default_factory=list)
    error_type: str = ""
    error: str = ""
    param: str | None = None
    value: Any = None
    facts: dict[str, Any] = field(default_factory=dict)  # of ready and metrics


decode = msgspec.json.Decoder(Message).decode
