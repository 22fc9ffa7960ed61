"""What a scorer is given and what it says; knows neither tables nor files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Answer:
    """One sample of one row: the text, what it should have been, and the row's columns.

    `continuations` are the choices of a multiple-choice row with their log-probabilities;
    `place` is the row's number and that of the sample.
    """

    text: str
    truth: object = None
    row: Mapping[str, object] = field(default_factory=dict)
    continuations: tuple[tuple[str, float], ...] = ()
    place: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A score, what was read out of the answer to get it, and why it is what it is."""

    value: float
    read: str | None = None
    reason: str | None = None


class ScorerFailed(Exception):
    """A scorer could not judge an answer, and why; the row has no score then."""


class Scorer(Protocol):
    @property
    def name(self) -> str:
        """What the metric is called in tables and files."""

    @property
    def needs_truth(self) -> bool:
        """Whether a row without ground truth cannot be scored."""

    def score(self, answer: Answer) -> Verdict | None:
        """The verdict, or None where this row cannot be judged at all."""
