"""UserPattern: a regular expression of the user, which may take very long for some answers.

(a+)+b on 40 letters "a" takes hours, and Python's search cannot be stopped. So it runs in a process
of its own, which can be killed. The process starts with the first answer and serves all others.
"""

from __future__ import annotations

import json
import re
import sys
import weakref

from quire.base.line_child import LineChild
from quire.errors import InvalidOption
from quire.evals.scoring import text
from quire.evals.scoring.scorer import ScorerFailed

_SECONDS = 2.0  # of processor time, for one answer
_WALL_SECONDS = 20.0  # of real time for one answer, however busy the machine is
_CHILD = "quire.evals.scoring.pattern_child"


class PatternTooSlow(ScorerFailed):
    """The search took too long for one answer."""


class UserPattern:
    """The pattern given as `option`; InvalidOption if it is not valid."""

    def __init__(self, pattern: str, option: str, *, seconds: float = _SECONDS) -> None:
        try:
            re.compile(pattern)
        except (re.error, RecursionError, OverflowError) as error:
            raise InvalidOption(
                f"{option} takes a Python regular expression, not {pattern!r}: {error}",
                parameter=option,
                value=pattern,
            ) from None
        self._pattern, self._option, self._seconds = pattern, option, seconds
        self._child: LineChild | None = None

    def extract(self, answer: str, *, last: bool = False) -> str | None:
        """The result of text.extract; PatternTooSlow if that takes too long."""
        child = self._started()
        reply = child.exchange(json.dumps({"text": answer, "last": last}), _WALL_SECONDS)
        if reply is None:
            self._child = None
            child.end()
            raise PatternTooSlow(
                f"{self._option} {self._pattern!r:.100} takes more than {self._seconds:g} s on an "
                f"answer of {len(answer):,} characters; write it without repetitions inside others"
            )
        found: str | None = reply["found"]
        return found

    def _started(self) -> LineChild:
        if self._child is not None and self._child.is_alive():
            return self._child
        child = LineChild(_CHILD)
        weakref.finalize(self, child.end)
        setting = json.dumps({"pattern": self._pattern, "seconds": self._seconds})
        if child.exchange(setting, _WALL_SECONDS) is None:
            child.end()
            raise ScorerFailed(
                f"the process that looks for {self._option} did not start; see whether "
                f"`{sys.executable} -m {_CHILD}` runs"
            )
        self._child = child
        return child


Pattern = re.Pattern[str] | UserPattern


def found_by(pattern: Pattern, answer: str, *, last: bool = False) -> str | None:
    """The result of text.extract; a user's pattern is searched in a process of its own."""
    if isinstance(pattern, UserPattern):
        return pattern.extract(answer, last=last)
    return text.extract(pattern, answer, last=last)
