"""The stderr of an engine: every line is passed on, and the last ones are kept, because they may
show why it died."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

MOST_LINES, LONGEST_LINE = 20, 1 << 16  # lines that are kept; bytes of each


class StderrTail:
    """Takes bytes as they come; `hear` gets each line."""

    def __init__(self, hear: Callable[[str], None]) -> None:
        self._hear, self._half_line = hear, b""
        self._lines: deque[str] = deque(maxlen=MOST_LINES)

    def feed(self, data: bytes) -> None:
        *lines, half = (self._half_line + data).split(b"\n")
        self._half_line = half[-LONGEST_LINE:]
        for line in lines:
            self._hear(self.keep(line))

    def keep(self, line: bytes) -> str:
        text = line[-LONGEST_LINE:].decode(errors="replace")
        self._lines.append(text)
        return text

    def __str__(self) -> str:
        return "\n".join(self._lines)
