"""ThoughtWatch: where the thoughts of one sequence end, if they are not ended before.

A device needs to know nothing of it: the sequence is full at `due` outputs, and there it is looked
at. It then goes on as it likes, or with tokens that it did not choose.
"""

from __future__ import annotations

from quire.inputs.detokenize import marked_text
from quire.inputs.tokenizer import Tokenizer
from quire.request import Ints, Request, ThoughtLimit

# Tokens of white space that an answer may begin with before it is taken to have no thoughts.
_MOST_BLANK = 8


class ThoughtWatch:
    """Of one sequence, which it follows from look to look."""

    __slots__ = ("_draws_all", "_left", "_limit", "_tokenizer", "due")

    def __init__(self, tokenizer: Tokenizer, request: Request, limit: ThoughtLimit) -> None:
        self._tokenizer, self._limit = tokenizer, limit
        # For a logprob of each.
        self._draws_all = request.params.num_logprobs is not None
        self._left: list[int] = []  # tokens that must come next, and are drawn
        # An opening has one token at least.
        self.due: int | None = limit.budget if limit.opened else limit.budget + 1
        if self.due == 0:  # a row draws before it is looked at
            self._left, self.due = [*limit.forced], 1

    @property
    def fixed(self) -> int | None:
        """What the next draw must be, if that is fixed."""
        return self._left[0] if self._left else None

    def reach(self, output_ids: Ints) -> list[int]:
        """The tokens that must come behind these, without being drawn. `due` then says when to
        look again."""
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
        """At how many outputs thoughts that the answer opened have all their tokens; at the next
        one where it may still open them, None where it does not."""
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
        """What is forced, without what the sequence has begun of it."""
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
