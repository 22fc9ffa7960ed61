"""Scorers that compare an answer with the truth as text or as a number."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from quire.evals.scoring import text
from quire.evals.scoring.scorer import Answer, Verdict
from quire.evals.scoring.user_pattern import Pattern, found_by

# The two filters with which lm-eval 0.4.13 reads answers to GSM8K, under its names.
STRICT = re.compile(r"#### (-?[0-9.,]+)")
FLEXIBLE = re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")
_FINAL_STOP = re.compile(r"\.$")
_NOTHING_FOUND = "[invalid]"


def _equal(answer: str, truth: str) -> float:
    return float(answer.strip() == truth.strip())


def _equal_normalised(answer: str, truth: str) -> float:
    return float(text.normalised(answer) == text.normalised(truth))


def equal_numbers(answer: str, truth: str) -> float:
    """Equal as written numbers: "$1,000." is "1000", but "1000.0" is not."""
    return float(_bare(answer) == _bare(truth))


def _bare(text: str) -> str:
    """The number without thousands, dollars, the working before it and a final stop."""
    number = text.replace(",", "").replace("$", "").rpartition("#### ")[2]
    return _FINAL_STOP.sub("", number).lower()


@dataclass(frozen=True, slots=True)
class TextMatch:
    """Reads the answer (all of it, or what `pattern` finds) and compares with each truth."""

    name: str
    compare: Callable[[str, str], float]
    pattern: Pattern | None = None
    last: bool = False
    needs_truth: bool = True

    def score(self, answer: Answer) -> Verdict | None:
        wanted = text.truths(answer.truth)
        if not wanted:
            return None
        read: str | None = answer.text
        if self.pattern is not None:
            read = found_by(self.pattern, answer.text, last=self.last)
        if read is None:
            return Verdict(0.0, _NOTHING_FOUND, "the pattern does not match")
        return Verdict(max(self.compare(read, truth) for truth in wanted), read)


# named.py describes each of them.
exact = partial(TextMatch, "exact_match", _equal)
normalised = partial(TextMatch, "normalised_match", _equal_normalised)
f1 = partial(TextMatch, "f1", text.f1)
number_flexible = partial(
    TextMatch, "exact_match,flexible-extract", equal_numbers, FLEXIBLE, last=True
)


def number_strict(pattern: Pattern | None = None) -> TextMatch:
    return TextMatch("exact_match,strict-match", equal_numbers, pattern or STRICT)
