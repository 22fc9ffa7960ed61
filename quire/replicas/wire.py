"""The messages between supervisor and engine: one JSON object per line, nothing else.

To the engine      open, rows, recall, end, close
From the engine    ready, result, returned, metrics, plan, drained, failed
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

Message = dict[str, Any]
Read = TypeVar("Read")
_MESSAGE = b'{"kind":'  # the beginning of every message


def pack(message: Message) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode("ascii") + b"\n"


unpack: Callable[[bytes], Message] = json.loads


class Lines(Generic[Read]):
    """Cuts bytes into messages as they come. Bytes before the first message go to `hear`: Python
    may be set up to print at its start, and need not end its line."""

    def __init__(
        self, unpack: Callable[[bytes], Read], hear: Callable[[bytes], object] | None = None
    ) -> None:
        self._unpack, self._hear = unpack, hear
        self._parts: list[bytes] = []  # of a line whose end has not come yet

    def feed(self, data: bytes) -> Iterator[Read]:
        """The messages that `data` completes; raises what `unpack` raises for other lines."""
        *whole, rest = data.split(b"\n")
        if whole:
            whole[0] = b"".join([*self._parts, whole[0]])
            self._parts = []
        self._parts.append(rest)
        for line in whole:
            if self._hear is not None:
                printed, found, behind = line.partition(_MESSAGE)
                if printed or not found:
                    self._hear(printed)
                if not found:
                    continue
                self._hear, line = None, found + behind
            yield self._unpack(line)
