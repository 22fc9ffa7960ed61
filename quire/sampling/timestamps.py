"""TimestampRule: how a transcript with times is written. Times come in pairs around a text, never
go back, and one comes wherever all of them together are likelier than any text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class TimestampRule:
    """A logits processor. Tokens from `first` on are times, those below `end` text; `never` are the
    tokens that are not written at all. The first time of an answer is at most `most_initial` steps
    after the beginning, if that is said."""

    first: int
    end: int
    never: tuple[int, ...] = ()
    most_initial: int | None = None

    def __call__(self, written: Sequence[int], logits: Tensor) -> Tensor:
        logits[list(self.never)] = -torch.inf
        times = [token for token in written if token >= self.first]
        after_time = bool(written) and written[-1] >= self.first
        pair_is_whole = len(written) < 2 or written[-2] >= self.first
        if after_time and pair_is_whole:
            logits[self.first :] = -torch.inf  # text must follow
        elif after_time:
            logits[: self.end] = -torch.inf  # the next text's own time, or the end
        if times:
            # The beginning of the next text may be the end of the last; no text takes no time.
            least = times[-1] if after_time and not pair_is_whole else times[-1] + 1
            logits[self.first : least] = -torch.inf
        if not written:
            logits[: self.first] = -torch.inf
            if self.most_initial is not None:
                logits[self.first + self.most_initial + 1 :] = -torch.inf
        text, time = logits[: self.first], logits[self.first :]
        if time.logsumexp(0) > text.max():
            logits[: self.first] = -torch.inf
        return logits
