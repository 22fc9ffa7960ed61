"""A plan that runs on the device, until its result is asked for."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from quire.errors import EngineError
from quire.executor.device_rows import FAILED
from quire.executor.outbox import Letter
from quire.step import StepResult, TokenLogprobs


@dataclass(slots=True)
class Extras:
    """What rows that asked for more get beside their tokens."""

    logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    scored: dict[int, list[TokenLogprobs]] = field(default_factory=dict)

    def add_logprobs(self, entries: dict[int, TokenLogprobs]) -> None:
        for line, entry in entries.items():
            self.logprobs.setdefault(line, []).append(entry)


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
        return StepResult(tokens, counts, logprobs, self.extras.scored, tuple(failed.tolist()))
