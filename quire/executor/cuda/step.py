"""A plan in flight on the device, until its result is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from quire.errors import EngineError
from quire.executor.cuda.beams import CandidateCopy, joined_candidates
from quire.executor.cuda.drawn_scores import DrawnCopy
from quire.executor.cuda.hidden import HiddenCopy
from quire.executor.cuda.host_copies import HostCopy
from quire.executor.cuda.more_scores import MoreCopy
from quire.executor.cuda.sampler_draws import LateTokens
from quire.executor.cuda.scoring import ScoreCopy
from quire.executor.torch_defaults import computes_by_usual_defaults
from quire.request import Ints
from quire.sampling.sampled import Sampled, joined_blocks
from quire.step import DrawnScores, StepResult, no_ints
from quire.steps.row_schema import FAILED, LEFT_NONE, RESTS


@dataclass(slots=True)
class Extras:
    """What rows get beside their tokens, if they want it."""

    logprobs: list[DrawnScores] = field(default_factory=list)
    drawn_copies: list[DrawnCopy] = field(default_factory=list)
    more_copies: list[MoreCopy] = field(default_factory=list)  # step by step
    score_copies: list[ScoreCopy] = field(default_factory=list)
    hidden_copies: list[HiddenCopy] = field(default_factory=list)
    candidates: list[CandidateCopy] = field(default_factory=list)
    errors: dict[int, str] = field(default_factory=dict)
    held: dict[int, int] = field(default_factory=dict)
    left_none: set[int] = field(default_factory=set)

    def add(self, sampled: Sampled, lines: Ints) -> None:
        """Add the sampler's results; their line i is line lines[i] of the plan."""
        self.logprobs += [DrawnScores(lines[b.lines], b.scores) for b in sampled.logprobs]
        self.errors.update({int(lines[i]): error for i, error in sampled.errors.items()})
        self.held.update({int(lines[i]): held for i, held in sampled.held.items()})
        self.left_none.update(int(lines[i]) for i in sampled.left_none)


@computes_by_usual_defaults
@dataclass(frozen=True, slots=True)
class CudaStep:
    """`host_copy` holds [K, rows]: tokens, FAILED, LEFT_NONE or RESTS. If rows guess, each row has
    `lines_each` neighbouring columns."""

    host_copy: HostCopy
    extras: Extras = field(default_factory=Extras)
    draw_late: Callable[[], LateTokens] | None = None  # draws by the sampler
    lines_each: int = 1

    def result(self) -> StepResult:
        try:
            tokens = self._tokens()
        except RuntimeError as error:
            raise EngineError(
                f"the GPU failed while it computed: {error}. The process must be started again."
            ) from error
        counts = (tokens >= 0).sum(axis=1, dtype=np.int32)
        order, passes, guessed = None, no_ints(), no_ints()
        if self.lines_each > 1:
            passes = (tokens[:, :: self.lines_each] != RESTS).sum(axis=1, dtype=np.int32)
            guessed = (tokens != RESTS).sum(axis=1, dtype=np.int32) - passes
            order = np.argsort(tokens < 0, axis=1, kind="stable")  # real tokens first
            tokens = np.take_along_axis(tokens, order, axis=1)
        left_none = self.extras.left_none | {*np.flatnonzero((tokens == LEFT_NONE).any(axis=1))}
        failed = np.flatnonzero(((tokens == FAILED) | (tokens == LEFT_NONE)).any(axis=1))
        drawn = joined_blocks(self.extras.logprobs)
        logprobs = [_of_real_tokens(block, counts) for block in drawn]
        for sent in self.extras.drawn_copies:
            logprobs += sent.read(tokens, counts, order)
        more = [one for sent in self.extras.more_copies for one in sent.read(tokens, counts)]
        logprobs += joined_blocks(more)
        scored = {i: one for sent in self.extras.score_copies for i, one in sent.read().items()}
        return StepResult(
            tokens,
            counts,
            tuple(logprobs),
            scored,
            tuple(failed.tolist()),
            self.extras.errors,
            self.extras.held,
            joined_candidates(self.extras.candidates),
            {i: one for sent in self.extras.hidden_copies for i, one in sent.read().items()},
            passes,
            guessed,
            left_none=tuple(map(int, left_none)),
        )

    def _tokens(self) -> Ints:
        """[rows, K], with the sampler's draws."""
        # Before reading: the device may still compute later steps of the plan.
        late = None if self.draw_late is None else self.draw_late()
        drawn = self.host_copy.read()
        each, (num_steps, num_lines) = self.lines_each, drawn.shape
        by_row = drawn.reshape(num_steps, num_lines // each, each).transpose(1, 0, 2)
        tokens = np.array(by_row, np.int32).reshape(num_lines // each, num_steps * each)
        if late is None:
            return tokens
        released = np.full((late.num_lines - len(tokens), tokens.shape[1]), RESTS, np.int32)
        tokens = np.concatenate([tokens, released])
        tokens[late.lines] = RESTS
        tokens[late.lines, : late.tokens.shape[1]] = late.tokens
        for sampled, lines in late.drawn:
            self.extras.add(sampled, lines)
        return tokens


def _of_real_tokens(block: DrawnScores, counts: Ints) -> DrawnScores:
    """The block without tokens that a row drew after it stopped."""
    nth = np.zeros(len(block.lines), np.int64)
    seen: dict[int, int] = {}
    for i, line in enumerate(block.lines.tolist()):
        nth[i] = seen[line] = seen.get(line, -1) + 1
    real = np.flatnonzero(nth < counts[block.lines])
    return DrawnScores(block.lines[real], block.scores.take(real))
