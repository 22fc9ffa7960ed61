"""The interface of scorers: an Answer in, a Verdict out; independent of tables and files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Answer:
    """One sample of one row: the text, the ground truth, and the row's columns.

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
    """A score, the part of the answer that was judged, and the reason for the score."""

    value: float
    read: str | None = None
    reason: str | None = None


class ScorerFailed(Exception):
    """The reason why a scorer could not judge an answer; the row has no score then."""


class Scorer(Protocol):
    @property
    def name(self) -> str:
        """The name of the metric in tables and files."""

    @property
    def needs_truth(self) -> bool:
        """Whether a row without ground truth cannot be scored."""

    def score(self, answer: Answer) -> Verdict | None:
        """The verdict, or None if this row cannot be judged."""
