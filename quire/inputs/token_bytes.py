"""TokenBytes: the bytes that each token adds to a text.

Text is decoded from bytes, not from tokens, because one character may be spread over several
tokens. What a token adds follows from the tokenizer's decoder:

  ByteLevel        each character of the token stands for one byte (GPT-2's alphabet)
  with ByteFallback "▁" is a space, "<0xE2>" is one byte, anything else is itself
  Metaspace        the same, without byte tokens
  any other        what decoding the token after another one adds

The second and third drop the space before the first word of a text, so the first token of a text
is asked for by `first`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from quire.base.boundary import refusing
from quire.errors import CorruptModel

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def not_decoded(why: str) -> CorruptModel:
    return CorruptModel(f"the model's tokenizer cannot decode its tokens: {why}")


def byte_alphabet() -> dict[str, int]:
    """GPT-2's spelling of bytes as printable characters: "!" is 0x21, "Ġ" is 0x20 (a space).

    Bytes that print in Latin-1 spell themselves; the other 68 take U+0100 and up, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(0x100 + n): byte for n, byte in enumerate(others)})
    return alphabet


class Pieces(dict[int, bytes]):
    """Token id -> bytes, filled as it is read."""

    def __init__(self, make: Callable[[int], bytes]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, token_id: int) -> bytes:
        piece = self[token_id] = self._make(token_id)
        return piece


class TokenBytes:
    """The bytes that each token of one tokenizer adds to a text."""

    def __init__(self, backend: Backend) -> None:
        self._spelling = spelling = _Spelling(backend)
        self.special_ids = spelling.special_ids
        # These refer to the spelling and not to this object: a reference cycle would keep the
        # tokenizer in memory until a full garbage collection.
        self._pieces = {
            (skip, spaces): Pieces(partial(spelling.piece, skip, spaces))
            for skip in (True, False)
            for spaces in (True, False)
        }

    def pieces(self, skip_special_tokens: bool, spaces_between_special_tokens: bool) -> Pieces:
        """The table for these options; it may be indexed with any id, unknown ones add nothing."""
        return self._pieces[skip_special_tokens, spaces_between_special_tokens]

    @property
    def ends_words(self) -> bool:
        """Whether tokens end words with a space, which the last word of a text does not have."""
        return bool(self._spelling.word_end)

    def first(self, token_id: int, piece: bytes) -> bytes:
        """The bytes of the token at the beginning of a text; `piece` are those elsewhere."""
        return self._spelling.first(token_id, piece)


class _Spelling:
    """The rule by which a tokenizer's decoder turns tokens into bytes."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        self._strips = 0
        self.word_end = ""
        self._spell = self._speller()

    def piece(self, skip: bool, spaces: bool, token_id: int) -> bytes:
        special = token_id in self.special_ids
        token = self._backend.id_to_token(token_id)
        if token is None or (skip and special):
            return b""
        return token.encode() if special and not spaces else self._spell(self, token_id, token)

    def first(self, token_id: int, piece: bytes) -> bytes:
        if self._spell is _Spelling._after_another and piece:
            with refusing(not_decoded):
                return self._backend.decode([token_id], skip_special_tokens=False).encode()
        strip = min(self._strips, len(piece) - len(piece.lstrip(b" ")))
        return piece[strip:]

    def _speller(self) -> Callable[[_Spelling, int, str], bytes]:
        """One of the functions below: not bound to this object, which holds it."""
        decoder = self._backend.decoder
        if decoder is None:
            return _Spelling._after_another
        state: dict[str, Any] = json.loads(decoder.__getstate__())
        parts = state["decoders"] if state["type"] == "Sequence" else [state]
        kinds = [part["type"] for part in parts]
        if kinds == ["ByteLevel"]:
            self._alphabet = byte_alphabet()
            return _Spelling._byte_level
        spaces = [p for p in parts if p["type"] == "Replace"]
        if (
            set(kinds) <= {"Replace", "ByteFallback", "Fuse", "Strip"}
            and "Fuse" in kinds
            and [(p["pattern"], p["content"]) for p in spaces] == [({"String": "▁"}, " ")]
        ):
            strips = [p for p in parts if p["type"] == "Strip"]
            if all(p["content"] == " " and p["stop"] == 0 for p in strips):
                self._strips = sum(p["start"] for p in strips)
                return _Spelling._fallback if "ByteFallback" in kinds else _Spelling._spaced
        if kinds == ["BPEDecoder"] and parts[0]["suffix"]:
            self.word_end = parts[0]["suffix"]
            return _Spelling._ended
        if kinds == ["Metaspace"] and parts[0]["replacement"] == "▁":
            self._strips = 0 if parts[0]["prepend_scheme"] == "never" else 1
            return _Spelling._spaced
        return _Spelling._after_another

    def _byte_level(self, token_id: int, token: str) -> bytes:
        try:
            return bytes(map(self._alphabet.__getitem__, token))
        except KeyError:  # an added token, spelled as the text it is
            return token.encode()

    def _fallback(self, token_id: int, token: str) -> bytes:
        byte = _BYTE_TOKEN.fullmatch(token)
        return bytes([int(byte[1], 16)]) if byte else self._spaced(token_id, token)

    def _spaced(self, token_id: int, token: str) -> bytes:
        return token.replace("▁", " ").encode()

    def _ended(self, token_id: int, token: str) -> bytes:
        return token.replace(self.word_end, " ").encode()

    def _after_another(self, token_id: int, token: str) -> bytes:
        with refusing(not_decoded):
            before = self._backend.encode("a", add_special_tokens=False).ids[-1:]
            base = self._backend.decode(before, skip_special_tokens=False)
            text = self._backend.decode([*before, token_id], skip_special_tokens=False)
        return (text[len(base) :] if text.startswith(base) else text).encode()
