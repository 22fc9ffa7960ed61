"""A plan that runs on the device, until its result is asked for."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from quire.errors import EngineError, QuireError
from quire.executor.cuda_beams import CandidateLetter
from quire.executor.cuda_scoring import ScoreLetter
from quire.executor.device_rows import FAILED
from quire.executor.outbox import Letter
from quire.request import Ints
from quire.sampling.sampler import Sampled
from quire.step import HeldLogits, StepResult, TokenLogprobs


@dataclass(slots=True)
class Extras:
    """What rows that asked for more get beside their tokens."""

    logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    score_letters: list[ScoreLetter] = field(default_factory=list)
    candidates: CandidateLetter | None = None

    errors: dict[int, QuireError] = field(default_factory=dict)
    held: dict[int, HeldLogits] = field(default_factory=dict)

    def add(self, sampled: Sampled, lines: Ints) -> None:
        """What some lines drew: its line i is lines[i] of the plan."""
        for i, entry in sampled.logprobs.items():
            self.logprobs.setdefault(int(lines[i]), []).append(entry)
        self.errors.update({int(lines[i]): error for i, error in sampled.errors.items()})
        self.held.update({int(lines[i]): held for i, held in sampled.held.items()})


@dataclass(frozen=True, slots=True)
class CudaStep:
    """The letter holds [K, rows]: tokens, or why there is none (device_rows.py)."""

    letter: Letter
    extras: Extras = field(default_factory=Extras)

    def result(self) -> StepResult:
        try:
            tokens = np.ascontiguousarray(self.letter.read().T).astype(np.int32, copy=False)
        except RuntimeError as error:
            raise EngineError(
                f"the GPU failed while it computed: {error}. The process must be started again."
            ) from error
        counts = (tokens >= 0).sum(axis=1, dtype=np.int32)
        failed = np.flatnonzero((tokens == FAILED).any(axis=1))
        logprobs = {
            line: entries[: counts[line]]
            for line, entries in self.extras.logprobs.items()
            if counts[line]
        }
        scored = {i: one for sent in self.extras.score_letters for i, one in sent.read().items()}
        return StepResult(
            tokens,
            counts,
            logprobs,
            scored,
            tuple(failed.tolist()),
            self.extras.errors,
            self.extras.held,
            None if self.extras.candidates is None else self.extras.candidates.read(),
        )
