"""From arrays of scores to the dicts that a caller sees, with the texts of the tokens."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from quire.inputs.detokenize import TokenTexts
from quire.logprobs import LazyLogprobs, Logprob, LogprobsOnePosition
from quire.request import Ints
from quire.step import Scores

CONTEXT = 4  # tokens that may have begun a character
# Tokens at a position, above which its dict is made when it is asked for.
WIDE = 256


@dataclass(frozen=True, slots=True)
class ScoredTokens:
    """Scores of some tokens: line i of `parts`, one after the other, is of ids[first + i].

    `ranked`: those beside the token are the likeliest, and not just those that were asked for.
    """

    parts: Sequence[Scores]
    ids: Ints
    first: int
    ranked: bool
    texts: TokenTexts | None  # None: nobody wants them

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    @property
    def is_wide(self) -> bool:
        return any(part.top_ids.shape[1] > WIDE for part in self.parts)

    def dicts(self) -> list[LogprobsOnePosition]:
        """All of them."""
        return list(self._dicts(self.parts, self.first))

    def lazily(self) -> LazyLogprobs[LogprobsOnePosition]:
        """Each when it is asked for."""
        ends = list(accumulate(map(len, self.parts)))

        def make(index: int) -> LogprobsOnePosition:
            number = bisect_right(ends, index)
            line = index - (ends[number - 1] if number else 0)
            part = self.parts[number].part(line, line + 1)
            return next(self._dicts([part], self.first + index))

        return LazyLogprobs(len(self), make)

    def _dicts(self, parts: Iterable[Scores], at: int) -> Iterator[LogprobsOnePosition]:
        for part in parts:
            for line in zip(*(array.tolist() for array in part.arrays()), strict=True):
                yield self._dict(line, at)
                at += 1

    def _dict(self, line: tuple[Any, ...], at: int) -> LogprobsOnePosition:
        """The token itself first, then the others."""
        own, logprob, own_rank, ids, logprobs = line
        shown: list[str | None] = [None] * (len(ids) + 1)
        if self.texts is not None:
            before = self.ids[max(0, at - CONTEXT) : at].tolist()
            shown = [self.texts.text(token, before) for token in (own, *ids)]
        found: LogprobsOnePosition = {own: Logprob(logprob, own_rank, shown[0])}
        others = zip(ids, logprobs, shown[1:], strict=True)
        for rank, (token, its, text) in enumerate(others, start=1):
            if token != own:
                found[token] = Logprob(its, rank if self.ranked else None, text)
        return found
