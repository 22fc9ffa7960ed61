"""What looks at the tokens of one sequence as they come, and may end it or append tokens to it."""

from __future__ import annotations

from typing import Protocol

from quire.request import Ints


class TextWatch(Protocol):
    """Follows the text of one sequence for its stop strings."""

    def follow(self, token_ids: list[int]) -> tuple[int, str] | None:
        """Take tokens up to the first that completes a stop string: how many these are, and the
        string. None if no stop string is completed."""


class ThoughtWatch(Protocol):
    """Looks at one sequence at set lengths, and may append tokens to it."""

    due: int | None  # the number of outputs at the next look; None if there is none

    @property
    def fixed(self) -> int | None:
        """The token that the next draw must give, or None."""

    def forced_after(self, output_ids: Ints) -> list[int]:
        """The tokens that must come after these, without being drawn; sets `due`."""
