"""How many tokens of an answer were reasoning: those up to the tag that closes it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from quire.inputs.reasoning import closings
from quire.inputs.tokenizer import Tokenizer


class ReasoningCount:
    """Counts for answers of one model, whose reasoning a `tag` opens; "" for any."""

    def __init__(self, tokenizer: Tokenizer, tag: str) -> None:
        self._tokenizer, self._closings = tokenizer, closings(tag)

    def count(self, ids: Sequence[int]) -> int:
        """Of an answer that has reasoning. All of them are where it never closes."""
        counts = range(len(ids) + 1)
        return min(bisect_left(counts, True, key=lambda n: self._is_closed(ids[:n])), len(ids))

    def _is_closed(self, ids: Sequence[int]) -> bool:
        # Some models mark reasoning by tokens that a text leaves out.
        text = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return any(closing in text for closing in self._closings)
