"""Turns arrays of scores into the dicts that a caller sees, with the texts of the tokens.

Nothing is made before it is read: until then an output holds UnreadLogprobs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby, repeat

import numpy as np

from quire.inputs.detokenize import TokenTexts
from quire.logprobs import (
    FlatLogprobs,
    LazyLogprobs,
    Logprob,
    LogprobsOnePosition,
    MadeDicts,
    PromptLogprobs,
    Unread,
)
from quire.request import Ints
from quire.step import Scores, join_scores

CONTEXT = 4  # earlier tokens in which a character may have begun
# With more tokens at a position than this, its dict is made only when it is asked for.
WIDE = 256


@dataclass(frozen=True, slots=True)
class ScoredTokens:
    """Scores of successive tokens: line i of all `parts` together is about ids[first + i].

    `ranked`: the tokens beside each are the likeliest, and not just those that were asked for.
    """

    parts: Sequence[Scores]
    ids: Ints
    first: int
    ranked: bool
    texts: TokenTexts | None  # None: texts are not wanted

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    @property
    def is_wide(self) -> bool:
        return any(part.top_ids.shape[1] > WIDE for part in self.parts)

    def since(self, first: int) -> ScoredTokens:
        """These scores without the first `first` lines."""
        parts, left = list[Scores](), first
        for part in self.parts:
            if left < len(part):
                parts.append(part.part(left, len(part)) if left else part)
            left = max(left - len(part), 0)
        return replace(self, parts=parts, first=self.first + first)

    def dicts(self) -> list[LogprobsOnePosition]:
        """The dicts of all lines."""
        return [one for part, at in self._runs() for one in self._dicts_of(part, at)]

    def lazily(self) -> LazyLogprobs[LogprobsOnePosition]:
        """The dicts, each made when it is asked for."""
        ends = list(accumulate(map(len, self.parts)))

        def make(index: int) -> LogprobsOnePosition:
            number = bisect_right(ends, index)
            line = index - (ends[number - 1] if number else 0)
            part = self.parts[number].part(line, line + 1)
            return next(self._dicts_of(part, self.first + index))

        return LazyLogprobs(len(self), make)

    def _runs(self) -> Iterator[tuple[Scores, int]]:
        """(part, index of its first id). Successive parts with the same number of entries per token
        are joined: an answer whose tokens came one by one is then made as fast as any other."""
        at = self.first
        for _, parts in groupby(self.parts, key=lambda part: part.top_ids.shape[1]):
            part = join_scores(list(parts))
            yield part, at
            at += len(part)

    def _dicts_of(self, part: Scores, at: int) -> Iterator[LogprobsOnePosition]:
        """The dict of each line: its own token first, then the others. There may be millions of
        entries, so all of a part are made without a line of Python for each."""
        own, width = part.token_ids[:, None], part.top_ids.shape[1]
        # If the token is always the likeliest (greedy rows), it needs no entry of its own.
        first = int(width > 0 and bool((part.top_ids[:, :1] == own).all()))
        top_ids, num_entries = part.top_ids[:, first:], 1 + width - first
        # Otherwise the token may be among the likeliest, too, and must have the same value there.
        again = top_ids == own
        top_logprobs = np.where(again, part.logprobs[:, None], part.top_logprobs[:, first:])
        others = np.arange(1 + first, 1 + width) if self.ranked else np.array(None, object)
        ranks = np.hstack([part.ranks[:, None], np.where(again, part.ranks[:, None], others)])
        ids = np.hstack([own, top_ids]).ravel().tolist()
        logprobs = np.hstack([part.logprobs[:, None], top_logprobs]).ravel().tolist()
        texts = self._texts_of(ids, num_entries, at)
        entries = zip(
            ids,
            map(Logprob, logprobs, ranks.ravel().tolist(), texts),
            strict=self.texts is not None,
        )
        return map(dict, zip(*[entries] * num_entries, strict=True))

    def _texts_of(self, ids: list[int], num_entries: int, at: int) -> Iterable[str | None]:
        """The texts of ids at positions from `at` on, `num_entries` at each."""
        if self.texts is None:
            return repeat(None)
        found = self.texts.whole(ids)
        for i in [i for i, text in enumerate(found) if text is None] if None in found else ():
            here = at + i // num_entries
            before = self.ids[max(0, here - CONTEXT) : here].tolist()
            found[i] = self.texts.text(ids[i], before)
        return found


@dataclass(frozen=True, slots=True)
class UnreadLogprobs(Unread):
    """Scores of a prompt's or an answer's tokens, as arrays.

    `begins_blank`: a first token stands before them that nothing could predict. `made` keeps the
    dicts of the same answer that were read before.
    """

    tokens: ScoredTokens
    flat: bool = False
    begins_blank: bool = False
    made: MadeDicts | None = None

    def __len__(self) -> int:
        return len(self.tokens) + self.begins_blank

    def since(self, first: int) -> UnreadLogprobs:
        if first == 0:
            return self
        tokens = self.tokens.since(first - self.begins_blank)
        return UnreadLogprobs(tokens, self.flat)

    def followed_by(self, later: Unread) -> UnreadLogprobs:
        if not isinstance(later, UnreadLogprobs):
            raise TypeError(f"{type(later).__name__} cannot follow logprobs that are arrays")
        # `ids` of the later part hold the whole answer so far.
        parts = [*self.tokens.parts, *later.tokens.parts]
        tokens = replace(later.tokens, parts=parts, first=self.tokens.first)
        return UnreadLogprobs(tokens, self.flat, self.begins_blank)

    def read(self) -> PromptLogprobs:
        blank: list[LogprobsOnePosition | None] = [None] * self.begins_blank
        if self.flat:
            flat = FlatLogprobs()
            flat.extend([*blank, *self.tokens.dicts()])
            return flat
        if self.tokens.is_wide:
            lazy = self.tokens.lazily()
            if not blank:
                return lazy
            return LazyLogprobs(len(lazy) + 1, lambda i: lazy[i - 1] if i else None)
        if self.made is None:
            return [*blank, *self.tokens.dicts()]
        return [*blank, *self.made.first(len(self), lambda n: self.tokens.since(n).dicts())]
