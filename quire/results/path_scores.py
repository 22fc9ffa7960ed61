"""Turns what the paths of a request scored into scores of continuations and choices."""

from __future__ import annotations

import math
from collections.abc import Sequence as Many

import numpy as np

from quire.errors import InvalidLogits
from quire.outputs import ContinuationScore
from quire.request import Choices, Request
from quire.sampling.choices import Doubles
from quire.scheduler.sequence import Sequence
from quire.step import join_scores

# At least this share is left for a choice that longer ones extend: float32 is no more exact.
_LEAST_REST = 1e-7


class PathScores:
    """The scores of all paths of a request, read continuation by continuation."""

    def __init__(self, paths: Many[Sequence]) -> None:
        """All the paths of one tree, each with all its scores."""
        if paths[0].tree is None:
            raise RuntimeError("a request without continuations has no scores of them")
        self._places = paths[0].tree.places
        self._of_path = {path.sample: join_scores(path.scores) for path in paths}
        self._logprobs = {p: scores.logprobs.tolist() for p, scores in self._of_path.items()}

    def of_continuations(self) -> list[ContinuationScore]:
        best = {p: (scores.ranks == 1).tolist() for p, scores in self._of_path.items()}
        found = []
        for places in self._places:
            own = tuple(self._logprobs[path][line] for path, line in places)
            is_greedy = all(best[path][line] for path, line in places)
            found.append(ContinuationScore(sum(own), is_greedy, len(own), own))
        return found

    def of_choices(self, choices: Choices) -> Doubles:
        """The log-probability of answers that begin with a choice, but not with a longer one."""
        begins = [sum(self._logprobs[path][line] for path, line in own) for own in self._places]
        found = np.array(begins, np.float64)
        for i, longer in enumerate(choices.longer):
            if longer and begins[i] > -np.inf:
                goes_on = sum(math.exp(begins[j] - begins[i]) for j in longer)
                # The shares add up to at most 1, except for rounding.
                found[i] += math.log(max(1 - goes_on, _LEAST_REST))
        return found

    def answer(self, request: Request, choices: Choices, number: int, sample: int) -> Sequence:
        """Choice `number` as an answer, with logprobs of its tokens if they are wanted."""
        answer = Sequence(request, sample, output_ids=choices.token_ids[number])
        answer.finish_reason = "stop"
        if request.params.num_logprobs is not None:
            places = self._places[number]
            parts = [self._of_path[path].part(line, line + 1) for path, line in places]
            answer.logprobs = [join_scores(parts)]
        return answer


def no_choice() -> InvalidLogits:
    return InvalidLogits(
        "the model gives none of the choices any chance at all; the other rows went on. Spell them "
        "as the model would write them."
    )
