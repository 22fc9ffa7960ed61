"""How long a pass over few positions takes: a straight line, fitted to the passes that ran, the
last ones most. The cost of one more position decides whether to guess."""

from __future__ import annotations

MEMORY = 64  # passes; older ones fade
MOST_POSITIONS = 128  # larger passes are limited by other things, and would bend the line
# Until passes of different sizes ran: the share of a pass that one more position costs.
ASSUMED = 0.03
# That share counts as much as passes whose number of positions has this variance.
ASSUMED_VARIANCE = 0.5
# A pass this many times slower than expected was disturbed from outside, and counts as that slow.
DISTURBED = 2.0


class PassTimes:
    """Means, variance and covariance of positions and seconds, fading."""

    def __init__(self) -> None:
        self._count = 0.0
        self._positions = self._seconds = 0.0
        self._variance = self._covariance = 0.0

    @property
    def is_known(self) -> bool:
        """Whether any pass was seen."""
        return self._count > 0

    def observe(self, positions: int, seconds: float) -> None:
        """A pass over `positions` positions, each of which drew a token, took `seconds`."""
        if not 0 < positions <= MOST_POSITIONS or seconds <= 0:
            return
        if self._count >= 3:
            fixed, each = self.line()
            seconds = min(seconds, DISTURBED * (fixed + each * positions))
        self._count = min(self._count + 1, MEMORY)
        share = 1 / self._count
        apart, later = positions - self._positions, seconds - self._seconds
        self._positions += share * apart
        self._seconds += share * later
        self._variance = (1 - share) * (self._variance + share * apart * apart)
        self._covariance = (1 - share) * (self._covariance + share * apart * later)

    def line(self) -> tuple[float, float]:
        """(seconds of a pass, seconds of each position); in no known unit before any pass ran."""
        mean = self._seconds or 1.0
        assumed = ASSUMED * mean
        each = (self._covariance + ASSUMED_VARIANCE * assumed) / (self._variance + ASSUMED_VARIANCE)
        # A position is never free, and a pass is never only its positions.
        each = min(max(each, assumed / 4), mean / max(self._positions, 1.0))
        return mean - each * self._positions, each
