"""Counts the tokens of an answer's reasoning: those up to the tag that closes it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from quire.inputs.reasoning import closings
from quire.inputs.tokenizer import Tokenizer


class ReasoningCount:
    """Counts for answers whose reasoning is opened by `tag`; "" for any known tag."""

    def __init__(self, tokenizer: Tokenizer, tag: str) -> None:
        self._tokenizer, self._closings = tokenizer, closings(tag)

    def count(self, ids: Sequence[int]) -> int:
        """The number for an answer with reasoning; all of its tokens if no tag closes it."""
        counts = range(len(ids) + 1)
        return min(bisect_left(counts, True, key=lambda n: self._is_closed(ids[:n])), len(ids))

    def _is_closed(self, ids: Sequence[int]) -> bool:
        # Some models mark reasoning by special tokens, which a text usually leaves out.
        text = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return any(closing in text for closing in self._closings)
