"""Multiple choice: by the log-probability of each choice, or read out of a generated answer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from quire.evals.scoring import text
from quire.evals.scoring.scorer import Answer, Verdict
from quire.evals.scoring.user_pattern import Pattern, found_by

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_LONGEST_NUMBER = 9  # digits; a longer number is no choice


def index_of(truth: object, choices: Sequence[str]) -> int | None:
    """Which choice the truth means: a number counted from 0, a letter, or the choice's text."""
    if isinstance(truth, bool) or truth is None:
        return None
    if isinstance(truth, float) and truth.is_integer():
        truth = int(truth)
    if isinstance(truth, int):
        return truth if 0 <= truth < len(choices) else None
    said = str(truth).strip()
    if said in choices:
        return list(choices).index(said)
    if said.isdecimal() and len(said) <= _LONGEST_NUMBER:
        return index_of(int(said), choices)
    if len(said) == 1 and said.upper() in LETTERS[: len(choices)]:
        return LETTERS.index(said.upper())
    return None


@dataclass(frozen=True, slots=True)
class MostLikely:
    """1 where the right choice has the highest log-probability.

    `per_character` divides each by the length of its text, so that long choices are not
    punished for being long: lm-eval's acc_norm, and acc without.
    """

    name: str
    per_character: bool
    needs_truth: bool = True

    def score(self, answer: Answer) -> Verdict | None:
        if not answer.continuations:
            return None
        choices = [choice for choice, _ in answer.continuations]
        right = index_of(answer.truth, choices)
        if right is None:
            return None
        values = [
            logprob / max(len(choice), 1) if self.per_character else logprob
            for choice, logprob in answer.continuations
        ]
        best = values.index(max(values))
        return Verdict(float(best == right), choices[best])


acc = partial(MostLikely, "acc", per_character=False)
acc_norm = partial(MostLikely, "acc_norm", per_character=True)


@dataclass(frozen=True, slots=True)
class ChosenLetter:
    """1 where a generated answer names the right choice, by letter or by its text.

    Read in this order: what `pattern` finds; "the answer is B"; a letter at the start ("B",
    "(B)", "B."); the text of exactly one choice. Anything else has chosen nothing.
    """

    column: str | None = None
    pattern: Pattern | None = None
    name: str = "choice"
    needs_truth: bool = True

    def score(self, answer: Answer) -> Verdict | None:
        choices = self._choices(answer)
        right = index_of(answer.truth, choices)
        if right is None:
            return None
        chosen = self._chosen(answer.text, choices)
        if chosen is None:
            return Verdict(0.0, None, "no choice was named")
        read = LETTERS[chosen] if chosen < len(LETTERS) else choices[chosen]
        return Verdict(float(chosen == right), read)

    def _choices(self, answer: Answer) -> list[str]:
        """The row's own choices; without a column for them, four letters."""
        given = answer.row.get(self.column) if self.column else None
        if isinstance(given, dict):  # ARC's form: {"text": [...], "label": [...]}
            given = given.get("text")
        return text.truths(given) or list(LETTERS[:4])

    def _chosen(self, said: str, choices: Sequence[str]) -> int | None:
        last_letter = LETTERS[len(choices[: len(LETTERS)]) - 1]
        patterns: list[Pattern] = [
            # Nothing is given back once taken, or a row of blanks would be tried in every split.
            re.compile(rf"(?i:answer\s*+(?:is)?+)[:*(\s]*+([A-{last_letter}])\b"),
            re.compile(rf"^[\s*(]*([A-{last_letter}])(?:[).:*\s]|$)"),
        ]
        for pattern in [self.pattern, *patterns] if self.pattern else patterns:
            if found := found_by(pattern, said):
                return index_of(found, choices)
        plain = text.normalised(said)
        named = [
            number
            for number, choice in enumerate(choices)
            if text.normalised(choice) and f" {text.normalised(choice)} " in f" {plain} "
        ]
        return named[0] if len(named) == 1 else None
