"""Byte-pair encodings, built from tokens and merges; for files without merges these are computed.

SentencePiece's files have a score for each piece, tiktoken's a rank for each token. The merges
follow from either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from quire.base.boundary import refusing
from quire.errors import CorruptModel
from quire.inputs.gguf_cuts import Cut

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend
    from tokenizers.pre_tokenizers import PreTokenizer


def byte_level_bpe(ids: dict[str, int], merges: Sequence[Any], cut: Cut) -> Backend:
    """Byte-level BPE for tokens whose bytes are written as letters (GPT-2's alphabet)."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, normalizers

    backend = Backend(bpe_model(ids, merges, ignore_merges=cut.whole_words))
    if cut.nfc:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = _pre_tokenizer(cut)
    backend.decoder = decoders.ByteLevel()
    return backend


def bpe_model(ids: dict[str, int], merges: Sequence[Any], **options: Any) -> Any:
    from tokenizers import models

    with refusing(lambda why: CorruptModel(f"the vocabulary's merges do not fit: {why}")):
        return models.BPE(ids, merges, **options)


def _pre_tokenizer(cut: Cut) -> PreTokenizer:
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import ByteLevel, Split
    from tokenizers.pre_tokenizers import Sequence as InTurn

    splits = [Split(Regex(pattern), "isolated") for pattern in cut.patterns]
    return InTurn([*splits, ByteLevel(add_prefix_space=False, use_regex=False)])


def merges_by_rank(tokens: Sequence[bytes]) -> list[tuple[int, int]]:
    """Every pair of tokens that forms a token, ordered by the rank of that token; pairs of one
    token are ordered by the rank of their first part."""
    ranks = {token: rank for rank, token in enumerate(tokens)}
    merges: list[tuple[int, int]] = []
    for token in tokens:
        cuts = ((token[:at], token[at:]) for at in range(1, len(token)))
        merges += sorted((ranks[a], ranks[b]) for a, b in cuts if a in ranks and b in ranks)
    return merges


def merges_by_score(scores: Mapping[str, float], ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """Every pair of pieces that makes one of those with a score, the best of these first.

    With pieces "a" 0, "b" 1, "ab" 2 (score -5), "abb" 3 (score -7): ("a","b") then ("ab","b").
    Among equal scores the longest left part goes first, then the longest right one: Mistral's
    runs of spaces all have one score, and 18 spaces are 16 and 2, not 8 and 10.
    """
    merges: list[tuple[float, int, int, int, int, int, str, str]] = []
    for piece, score in scores.items():
        for at in range(1, len(piece)):
            left, right = piece[:at], piece[at:]
            if left in ids and right in ids:
                whole = (ids[piece], ids[left], ids[right])
                merges.append((-score, -len(left), -len(right), *whole, left, right))
    merges.sort()
    return [merge[-2:] for merge in merges]
