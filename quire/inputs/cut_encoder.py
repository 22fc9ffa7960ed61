"""Texts and pairs of texts as token ids with their types, cut to a length inside special tokens.

To cut the ids afterwards would remove the token that ends a text. The tokenizer's own truncation
keeps the tokens around a text, and shortens the longer text of a pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from quire.base.boundary import refusing
from quire.errors import InvalidPrompt, InvalidRequest
from quire.inputs.tokenizer import Tokenizer, text_problem
from quire.request import Ints

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

Text = str | tuple[str, str]
_BATCH = 1024


class CutEncoder:
    """Encodes with one tokenizer, cut to `most` tokens, of which the first are kept where `side`
    is "right"; None cuts nothing. `pairs`: it is for pairs of texts."""

    def __init__(self, tokenizer: Tokenizer, most: int | None, side: str, pairs: bool) -> None:
        self._backend = tokenizer.backend
        if most is not None:
            self._backend = _cutting(tokenizer, most, side, pairs)

    def encode(
        self, texts: Sequence[Text], add_special_tokens: bool
    ) -> list[tuple[Ints, Ints] | InvalidPrompt]:
        """(ids, types) of each text, or its error."""
        found: list[tuple[Ints, Ints] | InvalidPrompt] = []
        for first in range(0, len(texts), _BATCH):
            some = texts[first : first + _BATCH]
            wrong = [_problem(text) for text in some]
            good = [text for text, problem in zip(some, wrong, strict=True) if problem is None]
            rows = iter(self._encoded(good, add_special_tokens))
            found += [next(rows) if problem is None else problem for problem in wrong]
        return found

    def _encoded(
        self, texts: Sequence[Text], special: bool
    ) -> list[tuple[Ints, Ints] | InvalidPrompt]:
        try:
            return list(self._batch(texts, special))
        except InvalidPrompt as error:
            if len(texts) == 1:
                return [error]
        # One text is invalid: encode them one by one to find it.
        return [row for text in texts for row in self._encoded([text], special)]

    def _batch(self, texts: Sequence[Text], special: bool) -> list[tuple[Ints, Ints]]:
        with refusing(lambda why: InvalidPrompt(f"the text cannot be encoded: {why}")):
            return [
                (np.array(one.ids, np.int32), np.array(one.type_ids, np.int32))
                for one in self._backend.encode_batch_fast(list(texts), add_special_tokens=special)
            ]


def _problem(text: Text) -> InvalidPrompt | None:
    parts = (text,) if isinstance(text, str) else text
    return next((found for part in parts if (found := text_problem(part)) is not None), None)


def _cutting(tokenizer: Tokenizer, most: int, side: str, pairs: bool) -> Backend:
    """A copy: the tokenizer itself never cuts."""
    from tokenizers import Tokenizer as Backend

    around = tokenizer.backend.num_special_tokens_to_add(is_pair=pairs)
    if most <= around:
        raise InvalidRequest(
            f"truncate_prompt_tokens={most} leaves no room for text: the tokenizer adds {around} "
            "tokens of its own",
            parameter="truncate_prompt_tokens",
            value=most,
        )
    made = Backend.from_str(tokenizer.backend.to_str())
    made.enable_truncation(most, strategy="longest_first", direction=side)
    return made
