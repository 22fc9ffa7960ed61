"""Decodes token ids to the text that they add after their prompt.

A completion is decoded from its bytes, with the prompt as context: a space before its first word
stays, and a character that the prompt began is completed. Where the completion does not go on with
that character, it is no part of it. Invalid UTF-8 becomes U+FFFD; the bytes of an incomplete
character are held back until it is complete. All tokens at once or one by one give the same text,
in time linear in the tokens.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

from quire.inputs.token_bytes import Pieces
from quire.inputs.tokenizer import Tokenizer
from quire.request import Ints

_UTF8 = codecs.getincrementaldecoder("utf-8")
# A character has at most 4 bytes, so an unfinished one is in the last 3.
_TAIL = 3
# Tokens before one that may have begun its character.
_MOST_BEFORE = 4
_UNFINISHED = "\ufffd"
# The decoder's, what the prompt began, and whether nothing can be seen before.
Place = tuple[tuple[bytes, int], bytes, bool]


class _WordEnds(codecs.BufferedIncrementalDecoder):
    """Holds back a space at the end of the text, which is dropped if no word follows."""

    def _buffer_decode(self, input: Any, errors: str, final: bool) -> tuple[str, int]:
        return codecs.utf_8_decode(input.removesuffix(b" "), errors, final)


class Detokenizer:
    """The text of one answer as its tokens arrive.

    With byte tokens <0xC3> <0xA9> ("é"): push([<0xC3>]) gives "", push([<0xA9>]) gives "é".
    """

    __slots__ = ("_begun", "_bytes", "_decoder", "_fresh", "_pieces")

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int] | Ints,
        *,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> None:
        self._bytes = tokenizer.token_bytes
        self._pieces = self._bytes.pieces(skip_special_tokens, spaces_between_special_tokens)
        tail = b""
        for token_id in reversed(prompt_ids):
            tail = self._pieces[int(token_id)] + tail
            if len(tail) >= _TAIL:
                break
        self._fresh = not tail  # no visible text comes before the answer
        kind = _WordEnds if self._bytes.ends_words else _UTF8
        self._decoder = kind(errors="replace")
        self._decoder.decode(tail[-_TAIL:])
        self._begun = self._decoder.getstate()[0]  # of a character (or a space) of the prompt
        self._decoder.reset()

    def push(self, ids: Iterable[int]) -> str:
        """The text that these tokens complete."""
        # looking up numpy integers would be ten times slower
        plain = ids.tolist() if hasattr(ids, "tolist") else ids
        parts = list(map(self._pieces.__getitem__, plain))
        if self._fresh:
            self._drop_first_space(parts, plain)
        data = b"".join(parts)
        if self._begun and data:
            begun, self._begun = self._begun, b""
            data = begun + data if _goes_on(begun, data) else data
        return self._decoder.decode(data)

    @property
    def place(self) -> Place:
        """The present position in the text, for `num_completing`."""
        return self._decoder.getstate(), self._begun, self._fresh

    def num_completing(self, place: Place, ids: Sequence[int], num_characters: int) -> int:
        """How many of `ids`, which were pushed at `place`, are needed for so many characters."""
        here = self.place
        self._go(place)
        totals = accumulate(len(self.push([token_id])) for token_id in ids)
        found = next(n for n, total in enumerate(totals, start=1) if total >= num_characters)
        self._go(here)
        return found

    def _go(self, place: Place) -> None:
        state, self._begun, self._fresh = place
        self._decoder.setstate(state)

    def finish(self) -> str:
        """The rest of the text: U+FFFD for a character that was not completed."""
        return self._decoder.decode(b"", final=True)

    def _drop_first_space(self, parts: list[bytes], ids: Iterable[int]) -> None:
        for index, (token_id, piece) in enumerate(zip(ids, parts, strict=True)):
            if piece:
                parts[index] = self._bytes.first(token_id, piece)
                self._fresh = False
                return


def _goes_on(begun: bytes, data: bytes) -> bool:
    """Whether the first byte of `data` may follow an unfinished character."""
    try:
        codecs.utf_8_decode(begun + data[:1], "strict", False)
    except UnicodeDecodeError:
        return False
    return True


class TokenTexts:
    """The text that single tokens add, which depends on the tokens before them.

    A token that leaves a character incomplete adds nothing; the token that completes it adds the
    whole character. With byte tokens after " x": [0xE2], [0x88], [0x9A] add "", "", "√".
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._pieces = tokenizer.token_bytes.pieces(False, True)
        self._whole = _WholeTexts(self._pieces)

    def text(self, token_id: int, before: Sequence[int]) -> str:
        """The text that the token adds after `before`; only the last few of these matter."""
        text = self._whole[token_id]
        return self._after(token_id, before) if text is None else text

    def whole(self, token_ids: Sequence[int]) -> list[str | None]:
        """The text of each token; None if it depends on the tokens before."""
        return list(map(self._whole.__getitem__, token_ids))

    def _after(self, token_id: int, before: Sequence[int]) -> str:
        piece = self._pieces[token_id]
        open_pieces: list[bytes] = []
        for earlier in reversed(before[-_MOST_BEFORE:]):
            earlier_piece = self._pieces[earlier]
            text = _decoded(earlier_piece)
            if text is not None and earlier_piece:
                break  # a whole text, which has been shown
            open_pieces.insert(0, earlier_piece)
            text = _decoded(b"".join([*open_pieces, piece]))
            if text is not None:
                return text
        alone = piece.decode(errors="replace")
        return "" if alone.endswith(_UNFINISHED) else alone


class _WholeTexts(dict[int, "str | None"]):
    """The texts of tokens that are whole characters, None for the others: decoded once."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces

    def __missing__(self, token_id: int) -> str | None:
        text = self[token_id] = _decoded(self._pieces[token_id])
        return text


def _decoded(piece: bytes) -> str | None:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return None


def completion_text(
    tokenizer: Tokenizer,
    prompt_ids: Sequence[int] | Ints,
    output_ids: Sequence[int] | Ints,
    **special_tokens: bool,
) -> str:
    """The text that `output_ids` add after `prompt_ids`; `special_tokens` are Detokenizer's."""
    detokenizer = Detokenizer(tokenizer, prompt_ids, **special_tokens)
    return detokenizer.push(output_ids) + detokenizer.finish()


def completion_texts(
    tokenizer: Tokenizer,
    rows: Iterable[tuple[Sequence[int] | Ints, Sequence[int] | Ints]],
    **special_tokens: bool,
) -> list[str]:
    """`completion_text` of several rows of (prompt ids, output ids)."""
    return [completion_text(tokenizer, before, ids, **special_tokens) for before, ids in rows]


def marked_text(
    tokenizer: Tokenizer, prompt_ids: Sequence[int] | Ints, output_ids: Sequence[int] | Ints
) -> str:
    """The text with all special tokens, which mark reasoning and calls, unseparated by spaces."""
    shown = {"skip_special_tokens": False, "spaces_between_special_tokens": False}
    return completion_text(tokenizer, prompt_ids, output_ids, **shown)
