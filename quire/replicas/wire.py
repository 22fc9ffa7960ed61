"""What supervisor and engine say to each other: one JSON object per line, nothing else.

To the engine      open, rows, end, close
From the engine    ready, result, metrics, plan, drained, failed
"""

from __future__ import annotations

import json
from typing import Any

Message = dict[str, Any]


def pack(message: Message) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode("ascii") + b"\n"


class Lines:
    """Bytes as they come, cut into messages."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def feed(self, data: bytes) -> list[Message]:
        """The messages that `data` completes."""
        *whole, rest = data.split(b"\n")
        if not whole:
            self._parts.append(rest)
            return []
        whole[0] = b"".join([*self._parts, whole[0]])
        self._parts = [rest]
        return [json.loads(line) for line in whole]
