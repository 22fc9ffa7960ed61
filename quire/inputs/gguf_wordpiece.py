"""The WordPiece tokenizers of BERT's GGUF files ("bert").

A file has "▁un" for a piece that begins a word and "happy" for one inside a word, where a
vocabulary has "un" and "##happy". Newer files say whether texts are made lower case and lose their
accents. For other files it follows from the pieces: a vocabulary made from texts with capitals has
each capital as a piece, and one made from texts without accents has no piece with an accent.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from string import ascii_uppercase
from typing import TYPE_CHECKING

from quire.errors import CorruptModel

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

_GOES_ON = "##"
_LONGEST_WORD = 100  # characters; a longer one is unknown
# What files that do not name their tokens by id call them.
USUAL_NAMES = {
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "unk_token": "[UNK]",
    "pad_token": "[PAD]",
    "mask_token": "[MASK]",
}


def as_written(tokens: Sequence[str], is_control: Sequence[bool]) -> list[str]:
    """The pieces of a vocabulary: "▁un" "happy" "[CLS]" -> "un" "##happy" "[CLS]"."""
    written = []
    for token, control in zip(tokens, is_control, strict=True):
        if token.startswith("▁"):
            token = token[1:]
        # Older converters leave whatever stands in brackets as it is.
        elif not control and not (token.startswith("[") and token.endswith("]")):
            token = _GOES_ON + token
        written.append(token)
    return written


def word_pieces(
    pieces: Sequence[str],
    special: Mapping[str, str],
    lowercase: bool | None,
    strip_accents: bool | None,
) -> Backend:
    """A tokenizer of those pieces; what is None is seen from them."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, normalizers, pre_tokenizers

    if "unk_token" not in special:
        raise CorruptModel(
            "the GGUF file names no token for unknown words (tokenizer.ggml.unknown_token_id), and "
            f"{USUAL_NAMES['unk_token']} is none of its tokens"
        )
    if lowercase is None:
        lowercase = not set(ascii_uppercase) <= set(pieces)
    if strip_accents is None:
        strip_accents = lowercase and not any(map(_has_accent, pieces))
    backend = Backend(
        models.WordPiece(
            {piece: index for index, piece in enumerate(pieces)},
            unk_token=special["unk_token"],
            continuing_subword_prefix=_GOES_ON,
            max_input_chars_per_word=_LONGEST_WORD,
        )
    )
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=True,
        strip_accents=strip_accents,
        lowercase=lowercase,
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(_GOES_ON)
    return backend


def _has_accent(piece: str) -> bool:
    """Whether a mark is part of a letter: é is e and an accent."""
    return any(unicodedata.category(mark) == "Mn" for mark in unicodedata.normalize("NFD", piece))
