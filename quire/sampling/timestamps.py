"""TimestampRule: how times are written in a transcript. Times come in pairs around a text and never
go back, and a time comes wherever all times together are likelier than any text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class TimestampRule:
    """A logits processor. Tokens from `first` on are times, those below `end` are text; `never` are
    tokens that are not written at all. The first time of an answer is at most `most_initial` steps
    after 0, unless that is None."""

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
            logits[: self.end] = -torch.inf  # the time that begins the next text, or the end
        if times:
            # The next text may begin when the last ended; a text takes some time.
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
