"""What looks at the tokens of one sequence as they come, and may end it or have it go on."""

from __future__ import annotations

from typing import Protocol

from quire.request import Ints


class TextWatch(Protocol):
    """Follows the text of one sequence for its stop strings."""

    def follow(self, token_ids: list[int]) -> tuple[int, str] | None:
        """Take tokens, up to the first that completes a stop string: how many these are then, and
        the string. None where none of them does."""


class ThoughtWatch(Protocol):
    """Looks at one sequence from time to time, and may have it go on with tokens of its own."""

    due: int | None  # so many outputs, where there is a next look

    @property
    def fixed(self) -> int | None:
        """What the next draw must be, if that is fixed."""

    def reach(self, output_ids: Ints) -> list[int]:
        """The tokens that must come behind these, without being drawn; sets `due`."""
