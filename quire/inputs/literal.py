"""LiteralEncoder: encodes a text in which some special tokens are text.

The library encodes every special token in a text as such. So a copy of the tokenizer, which takes
them for text, gets marks in place of the real special tokens; the marks are tokens of the copy.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from quire.errors import InvalidPrompt
from quire.inputs.quoting import ChatText
from quire.request import Ints

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

# Code points that no text has.
_OPEN, _CLOSE = "\ufdd0", "\ufdd1"


class LiteralEncoder:
    """Encodes with a copy of `backend`, which is left as it is."""

    def __init__(self, backend: Backend) -> None:
        from tokenizers import AddedToken
        from tokenizers import Tokenizer as Backend

        copied = Backend.from_str(backend.to_str())
        copied.encode_special_tokens = True  # it reads special tokens as text
        added = backend.get_added_tokens_decoder().items()
        special = {t.content: (i, t) for i, t in added if t.special and t.content}
        self._marks = {content: f"{_OPEN}{i}{_CLOSE}" for content, (i, _) in special.items()}
        copied.add_tokens(
            [
                AddedToken(
                    self._marks[content],
                    special=False,
                    normalized=False,
                    lstrip=token.lstrip,
                    rstrip=token.rstrip,
                    single_word=token.single_word,
                )
                for content, (_, token) in special.items()
            ]
        )
        self._ids = {
            copied.token_to_id(mark): special[content][0] for content, mark in self._marks.items()
        }
        longest_first = sorted(self._marks, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._copied = copied

    def encode(self, chat: ChatText, add_special_tokens: bool) -> Ints:
        """Token ids; the special tokens that begin at `chat.literal` are text."""
        text = chat.text
        if _OPEN in text:
            raise InvalidPrompt(
                "the messages hold a special token and U+FDD0, which no text has; clean them",
                parameter="messages",
            )
        parts, at, search = [], 0, 0
        while found := self._special.search(text, search):
            if found.start() in chat.literal:
                search = found.start() + 1
                continue
            parts += [text[at : found.start()], self._marks[found[0]]]
            at = search = found.end()
        marked = "".join([*parts, text[at:]])
        ids = self._copied.encode(marked, add_special_tokens=add_special_tokens).ids
        return np.array([self._ids.get(i, i) for i in ids], np.int32)
