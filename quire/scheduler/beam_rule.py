"""Which beams live on, which answers are found, and when a beam search is over.

The rule is that of Transformers' generate(num_beams=width, do_sample=False). All scores are
float32, summed token by token, as there. Per step:

1. Every beam offers its likeliest tokens; a candidate's score is its beam's plus its token's
   logprob. The best max(2, 1 + end ids) * width candidates of all beams are looked at.
2. A candidate that ends (an end id, or the last token there is room for) becomes an answer if it
   is among the best `width`; its score is divided by length ** length_penalty. The best `width`
   answers are kept. The best `width` candidates that do not end are the next beams.
3. The search is over when no token may follow, or when `width` answers are there and either
   early_stopping is True or the best beam cannot beat the worst answer: judged at its present
   length, or, with "never" and a positive penalty, at the longest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from quire.request import Ints
from quire.step import Floats

NO_PARENT = -1


@dataclass(frozen=True, slots=True)
class SearchRules:
    """What one search was asked for. A search of one beam is greedy: it stops at the first end."""

    width: int
    max_tokens: int
    end_ids: frozenset[int] = frozenset()
    length_penalty: float = 1.0
    early_stopping: bool | str = False

    @property
    def num_candidates(self) -> int:
        """Enough that `width` of them do not end, whichever do."""
        return max(2, 1 + len(self.end_ids)) * self.width


@dataclass(frozen=True, slots=True)
class Trail:
    """The last token of a beam, the other candidates there, and the trail before it."""

    place: int  # among the candidates of its parent; 0 = the likeliest
    candidates: Ints
    logprobs: Floats
    before: Trail | None

    @property
    def token(self) -> int:
        return int(self.candidates[self.place])

    def steps(self) -> list[Trail]:
        """From the first token on."""
        found: list[Trail] = []
        step: Trail | None = self
        while step is not None:
            found.append(step)
            step = step.before
        return found[::-1]


@dataclass(frozen=True, slots=True)
class Beam:
    """A text being written, and the sum of its logprobs. `parent`: index of the beam before it."""

    score: np.float32 = field(default_factory=lambda: np.float32(0))
    trail: Trail | None = None
    parent: int = NO_PARENT

    def token_ids(self) -> Ints:
        steps = [] if self.trail is None else self.trail.steps()
        return np.array([step.token for step in steps], np.int32)


@dataclass(frozen=True, slots=True)
class Answer:
    """A beam that is done: it ended, or has no room left; `score` has the length penalty in it."""

    score: np.float32
    beam: Beam
    by_length: bool


def _best(scores: Floats, count: int) -> list[int]:
    """Flat indices of the best candidates of all beams; of equals the better beam's first."""
    flat = scores.reshape(-1)
    order = np.argsort(-flat, kind="stable")[:count]
    found: list[int] = order[flat[order] > -np.inf].tolist()
    return found


# Whether a candidate ends: (number of its beam, token).
Ends = Callable[[int, int], bool]


class BeamSearch:
    """One search. `beams` and `answers` stand best first."""

    def __init__(self, rules: SearchRules, ends: Ends | None = None) -> None:
        """`ends` judges candidates where more than the end ids can end one."""
        self.rules = rules
        self.beams: list[Beam] = [Beam()]
        self.answers: list[Answer] = []
        self.num_tokens = 0
        self.over = False
        self._ends = ends or (lambda beam, token: token in rules.end_ids)

    def advance(self, tokens: Ints, logprobs: Floats) -> None:
        """One step. tokens, logprobs [beams, k]: the candidates of each beam, best first, and
        -inf where there are no more."""
        self.num_tokens += 1
        width, full = self.rules.width, self.num_tokens >= self.rules.max_tokens
        living: list[Beam] = []
        found = list(self.answers)
        scores = np.array([beam.score for beam in self.beams], np.float32)[:, None] + logprobs
        for place, at in enumerate(_best(scores, self.rules.num_candidates)):
            parent, rank = divmod(at, tokens.shape[1])
            stops = self._ends(parent, int(tokens[parent, rank]))
            goes_on = not stops and not full and len(living) < width
            if not goes_on and not ((stops or full) and place < width):
                continue
            trail = Trail(rank, tokens[parent], logprobs[parent], self.beams[parent].trail)
            beam = Beam(scores[parent, rank], trail, parent)
            if goes_on:
                living.append(beam)
            else:
                score = self._penalised(beam.score, self.num_tokens)
                found.append(Answer(score, beam, by_length=not stops))
        # Sorting keeps the order of equals: the earlier answer stays first.
        self.answers = sorted(found, key=lambda answer: -answer.score)[:width]
        self.beams = living
        self.over = full or not living or not self._can_improve()

    def _can_improve(self) -> bool:
        rules = self.rules
        if len(self.answers) < rules.width:
            return True
        if rules.early_stopping is True or rules.width == 1:
            return False
        longest = rules.early_stopping == "never" and rules.length_penalty > 0
        length = rules.max_tokens if longest else self.num_tokens
        return bool(self._penalised(self.beams[0].score, length) > self.answers[-1].score)

    def _penalised(self, score: np.float32, num_tokens: int) -> np.float32:
        """The score of a text of so many tokens. An extreme length penalty is limited to the range
        of float32, so that scores stay comparable."""
        limits = np.finfo(np.float32)
        with np.errstate(over="ignore", under="ignore"):
            power = np.float64(num_tokens) ** self.rules.length_penalty
            return score / np.float32(np.clip(power, limits.tiny, limits.max))
