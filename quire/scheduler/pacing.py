"""Which rows go token by token: how they draw the next one is known only when the last is."""

from __future__ import annotations

from dataclasses import dataclass

from quire.config import EngineConfig
from quire.sampling_params import SamplingParams
from quire.scheduler.sequence import Sequence

MANY_LOGPROBS = 256  # of a position; those of one step are enough to send home at a time


@dataclass(frozen=True, slots=True)
class Pacing:
    """What the host draws for in this engine, whatever a request asks for: rows that want logprobs,
    if these are of processed logits, or all rows, if logits processors see all of them."""

    logprobs: bool = False
    every_row: bool = False

    @staticmethod
    def in_engine(config: EngineConfig) -> Pacing:
        is_raw = config.logprobs_mode.startswith("raw_")
        return Pacing(logprobs=not is_raw, every_row=bool(config.batch_processors))

    def of(self, sequence: Sequence) -> bool:
        """Whether the host has a hand in each draw: by a mask, by choosing among a beam's
        candidates, by processors, or because no device row holds what the draw depends on."""
        request = sequence.request
        return (
            self.every_row
            or sequence.group is not None
            or sequence.guide is not None
            or bool(request.processors)
            or (self.logprobs and request.params.num_logprobs is not None)
            or any(len(word) > 1 for word in request.params._bad_words_token_ids or ())
        )


def brings_much(params: SamplingParams) -> bool:
    """Whether a token brings more logprobs home than several should at once."""
    num_logprobs = params.num_logprobs or 0
    return num_logprobs < 0 or num_logprobs > MANY_LOGPROBS
