"""ThoughtWatch: ends the thoughts of one sequence at a limit, unless they end before.

A device needs to know nothing of it: the sequence is full at `due` outputs, and is looked at then.
It then goes on by drawing, or with tokens that are forced.
"""

from __future__ import annotations

from quire.inputs.detokenize import marked_text
from quire.inputs.tokenizer import Tokenizer
from quire.request import Ints, Request, ThoughtLimit

# Tokens of white space that may come before the opening; after more there are no thoughts.
_MOST_BLANK = 8


class ThoughtWatch:
    """Watches one sequence, from one look to the next."""

    __slots__ = ("_draws_all", "_left", "_limit", "_tokenizer", "due")

    def __init__(self, tokenizer: Tokenizer, request: Request, limit: ThoughtLimit) -> None:
        self._tokenizer, self._limit = tokenizer, limit
        # Every token is drawn if each needs a logprob.
        self._draws_all = request.params.num_logprobs is not None
        self._left: list[int] = []  # tokens that must come next, but are drawn
        # An opening has at least one token.
        self.due: int | None = limit.budget if limit.opened else limit.budget + 1
        if self.due == 0:  # a row draws before it is first looked at
            self._left, self.due = [*limit.forced], 1

    @property
    def fixed(self) -> int | None:
        """The token that the next draw must give, or None."""
        return self._left[0] if self._left else None

    def forced_after(self, output_ids: Ints) -> list[int]:
        """The tokens that must come after these, without being drawn. Sets `due`, the number of
        outputs at the next look."""
        if self._left:
            return self._force(len(output_ids), self._left[1:])
        text = self._text(output_ids)
        if not self._limit.opened:
            begun = self._begun(output_ids, text)
            self.due = begun
            if begun is None or begun > len(output_ids):
                return []
            text = text.lstrip()[len(self._limit.opening) :]
        if self._limit.closing in text:
            self.due = None
            return []
        return self._force(len(output_ids), self._rest(output_ids.tolist()))

    def _begun(self, output_ids: Ints, text: str) -> int | None:
        """The number of outputs at which thoughts that the answer opened reach the limit; the next
        number of outputs if it may still open them, None if it cannot."""
        opening, body = self._limit.opening, text.lstrip()
        if not body.startswith(opening):
            may_come = opening.startswith(body) and len(output_ids) <= self._latest
            return len(output_ids) + 1 if may_come else None
        num_tokens = 1
        while not self._text(output_ids[:num_tokens]).lstrip().startswith(opening):
            num_tokens += 1
        return num_tokens + self._limit.budget

    @property
    def _latest(self) -> int:
        return self._limit.budget + len(self._limit.opening) + _MOST_BLANK

    def _rest(self, written: list[int]) -> list[int]:
        """The forced tokens, without those that the sequence has written already."""
        forced = [*self._limit.forced]
        for num_begun in range(min(len(forced) - 1, len(written)), 0, -1):
            if written[-num_begun:] == forced[:num_begun]:
                return forced[num_begun:]
        return forced

    def _force(self, num_outputs: int, tokens: list[int]) -> list[int]:
        if self._draws_all and tokens:
            self._left, self.due = tokens, num_outputs + 1
            return []
        self._left, self.due = [], None
        return tokens

    def _text(self, output_ids: Ints) -> str:
        return marked_text(self._tokenizer, [], output_ids)
