"""Vocabulary: what llguidance must know about a tokenizer, as data that can be sent to a process.

A byte-level or byte-fallback tokenizer is sent as its own JSON, which llguidance reads with the
same library that we use. Any other is sent as the bytes of each token. Token ids that the model has
beyond its tokenizer (a padded vocabulary) are no tokens and are never allowed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from quire.errors import GrammarFailed, InvalidGrammar

if TYPE_CHECKING:
    from llguidance import LLTokenizer

    from quire.inputs.tokenizer import Tokenizer

Bits = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """`size` ids of a model, of which the first `num_known` have a token.

    One of `tokenizer_json` and `tokens` is set. `special` are the tokens that are not text, such as
    <|im_end|>, as they are written.
    """

    size: int
    num_known: int
    eos_ids: tuple[int, ...]
    special_ids: tuple[int, ...]
    special: tuple[str, ...] = ()
    tokenizer_json: str | None = None
    tokens: tuple[bytes, ...] | None = None

    def to_line(self) -> str:
        """One line of JSON, in which the bytes of tokens are base64; `from_line` reads it."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_line(cls, line: str | bytes) -> Vocabulary:
        return msgspec.json.decode(line, type=cls)


def vocabulary_of(tokenizer: Tokenizer, size: int, eos_ids: Sequence[int]) -> Vocabulary:
    """The vocabulary of a model with `size` ids; `eos_ids` may end a text that is complete."""
    backend = tokenizer.backend
    ids = backend.get_vocab(with_added_tokens=True)
    num_known = min(size, max(ids.values(), default=-1) + 1)
    added = {i: token.content for i, token in backend.get_added_tokens_decoder().items()}
    ends = tuple(i for i in dict.fromkeys(eos_ids) if 0 <= i < num_known)
    if not ends:
        raise InvalidGrammar(
            "structured outputs need a token that ends a text, and this model has none: "
            f"eos ids {list(eos_ids)}, {num_known} tokens",
            parameter="structured_outputs",
        )
    # llguidance also treats every added token in angle brackets as one that is not text.
    special_ids = sorted(
        i
        for i, text in added.items()
        if i < size and (i in tokenizer.special_ids or (text[:1] == "<" and text[-1:] == ">"))
    )
    common: dict[str, Any] = {
        "size": size,
        "num_known": num_known,
        "eos_ids": ends,
        "special_ids": tuple(special_ids),
        "special": tuple(added[i] for i in special_ids),
    }
    if _llguidance_reads(backend, ids, size):
        return Vocabulary(**common, tokenizer_json=backend.to_str())
    pieces = tokenizer.token_bytes.pieces(False, False)
    return Vocabulary(**common, tokens=tuple(pieces[i] for i in range(num_known)))


def _llguidance_reads(backend: Any, ids: dict[str, int], size: int) -> bool:
    """Whether llguidance finds the same bytes in the tokenizer's JSON as we do.

    It numbers tokens without gaps, and supports only decoders of bytes.
    """
    if len(ids) > size or len(set(ids.values())) != max(ids.values(), default=-1) + 1:
        return False
    if backend.decoder is None:
        return False
    kinds = _decoder_kinds(json.loads(backend.decoder.__getstate__()))
    odd = any(t.startswith("<0x") and (len(t) != 6 or not _is_byte(t)) for t in ids)
    return "ByteLevel" in kinds or ("ByteFallback" in kinds and not odd)


def _decoder_kinds(state: dict[str, Any]) -> set[str]:
    found = {state["type"]}
    for part in state.get("decoders", ()):
        found |= _decoder_kinds(part)
    return found


def _is_byte(token: str) -> bool:
    try:
        return token[5] == ">" and 0 <= int(token[3:5], 16) < 256
    except ValueError:
        return False


def open_vocabulary(
    vocabulary: Vocabulary, encode: Callable[[str], list[int]] | None = None
) -> LLTokenizer:
    """llguidance's tokenizer; takes about a second for 150,000 tokens.

    `encode` splits a text into tokens if only their bytes are known; without it the longest token
    that fits is taken first.
    """
    from llguidance import LLTokenizer

    if vocabulary.tokenizer_json is not None:
        return LLTokenizer(
            vocabulary.tokenizer_json,
            n_vocab=vocabulary.size,
            eos_token=list(vocabulary.eos_ids),
        )
    table: Any = _TokenTable(vocabulary, encode)
    return LLTokenizer(table, eos_token=list(vocabulary.eos_ids))


class _TokenTable:
    """The bytes of each token, in the form that llguidance takes from Python."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, encode: Callable[[str], list[int]] | None) -> None:
        known = vocabulary.tokens or ()
        self.tokens = [*known, *[b""] * (vocabulary.size - len(known))]
        self.eos_token_id = vocabulary.eos_ids[0]
        self.special_token_ids = list(vocabulary.special_ids)
        self._encode = encode
        special = set(vocabulary.special_ids)
        self._ids = {t: i for i, t in enumerate(self.tokens) if t and i not in special}
        self._longest = max(map(len, self._ids), default=0)

    def __call__(self, text: str) -> list[int]:
        """Ids whose bytes are exactly the text: from the tokenizer, else the longest that fit."""
        wanted = text.encode()
        ids = self._encode(text) if self._encode is not None else []
        for start in (0, 1):  # a tokenizer may put a space of its own before a text
            if b"".join(self.tokens[i] for i in ids[start:]) == wanted:
                return ids[start:]
        return self._greedy(wanted)

    def _greedy(self, wanted: bytes) -> list[int]:
        ids, at = [], 0
        while at < len(wanted):
            for end in range(min(len(wanted), at + self._longest), at, -1):
                if wanted[at:end] in self._ids:
                    ids.append(self._ids[wanted[at:end]])
                    at = end
                    break
            else:  # no token has this character: llguidance then forces nothing here
                return ids
        return ids


def known_bits(vocabulary: Vocabulary) -> Bits | None:
    """A mask of the ids that are tokens; None if all are."""
    if vocabulary.num_known == vocabulary.size:
        return None
    bits = np.zeros(-(-vocabulary.size // 32) * 4, np.uint8)
    packed = np.packbits(np.ones(vocabulary.num_known, np.uint8), bitorder="little")
    bits[: len(packed)] = packed
    return bits.view(np.uint32)


def check_mask(bits: Bits, num_words: int) -> None:
    """Check that a mask can be written to this array."""
    if bits.dtype != np.uint32 or not bits.flags.c_contiguous:
        raise TypeError("a mask is a contiguous array of uint32")
    if len(bits) != num_words:
        raise GrammarFailed(f"a mask has {num_words} words of 32 tokens here, not {len(bits)}")
