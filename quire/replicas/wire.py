"""What supervisor and engine say to each other: one JSON object per line, nothing else.

To the engine      open, rows, end, close
From the engine    ready, result, metrics, plan, drained, failed
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Message = dict[str, Any]
_MESSAGE = b'{"kind":'


def pack(message: Message) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode("ascii") + b"\n"


class Lines:
    """Bytes as they come, cut into messages. What comes before the first of them goes to `hear`: a
    Python may have been set up to print when it starts, and need not end its line."""

    def __init__(self, hear: Callable[[bytes], None] | None = None) -> None:
        self._parts: list[bytes] = []
        self._hear = hear

    def feed(self, data: bytes) -> list[Message]:
        """The messages that `data` completes."""
        *whole, rest = data.split(b"\n")
        if not whole:
            self._parts.append(rest)
            return []
        whole[0] = b"".join([*self._parts, whole[0]])
        self._parts = [rest]
        while self._hear is not None and whole:
            printed, found, rest = whole[0].partition(_MESSAGE)
            if printed or not found:
                self._hear(printed)
            if found:
                self._hear, whole[0] = None, found + rest
            else:
                del whole[0]
        return [json.loads(line) for line in whole]
