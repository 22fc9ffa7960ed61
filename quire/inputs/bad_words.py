"""Words that an answer may not hold, as the tokens that would write them."""

from __future__ import annotations

from collections.abc import Sequence

from quire.errors import InvalidParams
from quire.inputs.tokenizer import Tokenizer


def bad_word_ids(tokenizer: Tokenizer, words: Sequence[str], vocab_size: int) -> list[list[int]]:
    """The token sequences that write a bad word: at the start of a text, and after a space."""
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        bare = word.lstrip() or word
        for text in (bare, f" {bare}"):
            ids = tuple(tokenizer.encode(text, add_special_tokens=False).tolist())
            if ids and max(ids) >= vocab_size:
                raise InvalidParams(
                    f"bad_words has {word!r}, whose token {max(ids)} the model does not have "
                    f"(it has {vocab_size})",
                    parameter="bad_words",
                    value=word,
                )
            if ids:
                found[ids] = None
    return [list(ids) for ids in found]
