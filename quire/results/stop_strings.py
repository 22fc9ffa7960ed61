"""StopStrings: finds stop strings in text that arrives in pieces.

The stop string that is complete first wins; of several that end at the same character, the first
of the list. The work is linear in the text, however it is cut. Tokens are not known here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quire.errors import InvalidParams
from quire.inputs.channels import num_open


@dataclass(frozen=True, slots=True)
class StopMatch:
    """The stop string that was found. Its last character is the one before `ends_at`; the text is
    to be cut at `cut_at`. Both are counted from the first character ever fed."""

    stop: str
    cut_at: int
    ends_at: int


class StopStrings:
    """The search over one answer's text.

    With stops ("END", "ND."), feeding "the E" and then "ND." finds "END" with cut_at 4 (7 with
    `include`): both stops overlap the second piece, and "END" completes one character earlier.
    """

    __slots__ = ("_include", "_stops", "_tail", "hold", "num_fed")

    def __init__(self, stops: Sequence[str], include: bool = False) -> None:
        if not all(stops):
            raise InvalidParams(
                "a stop string is empty and would match everywhere; leave it out",
                parameter="stop",
                value=list(stops),
            )
        self._stops = tuple(stops)
        self._include = include
        self._tail = ""
        self.num_fed = 0  # characters
        # So many of the last characters may belong to a stop string that is completed later.
        self.hold = max((len(stop) - 1 for stop in self._stops), default=0)

    def __bool__(self) -> bool:
        return bool(self._stops)

    def num_open(self) -> int:
        """How many characters at the end of the text may begin a stop string, so that a stream must
        not show them yet: of "the EN" with the stop "END" two."""
        if self._include:
            return 0
        return num_open(self._tail, self._stops)

    def skip(self, text: str) -> None:
        """Take text in which no stop may complete, though one may begin in it (min_tokens)."""
        self.num_fed += len(text)
        self._tail = (self._tail + text)[-self.hold :] if self.hold else ""

    def feed(self, text: str) -> StopMatch | None:
        """Take the next piece; returns a match if a stop string is completed in it."""
        window = self._tail + text
        offset = self.num_fed - len(self._tail)
        best: tuple[int, str] | None = None
        for stop in self._stops:
            # Only matches that end in `text` count: earlier ones were judged, or skipped.
            start = window.find(stop, max(0, len(self._tail) - len(stop) + 1))
            if start >= 0 and (best is None or start + len(stop) < best[0]):
                best = start + len(stop), stop
        self.skip(text)
        if best is None:
            return None
        end, stop = best
        ends_at = offset + end
        return StopMatch(stop, ends_at - (0 if self._include else len(stop)), ends_at)
