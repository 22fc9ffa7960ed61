"""Vocabularies in tiktoken's format: a line for each token, its bytes in base64 and its rank.

Such a file has neither the rule by which text is cut before bytes are merged nor the special
tokens; these are in the class that the directory names. Its code is not run: quire knows two of
these classes, and refuses others by name.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quire.errors import CorruptModel, UnsupportedModel
from quire.inputs.bpe import byte_level_bpe, merges_by_rank
from quire.inputs.gguf_cuts import CUTS, Cut
from quire.inputs.token_bytes import byte_alphabet

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

_LINE = re.compile(rb"([A-Za-z0-9+/]+=*) (\d{1,9})")
_MOST_TOKENS = 1 << 22


@dataclass(frozen=True, slots=True)
class _Class:
    """The facts from the code of a class: its rule for cutting text, and its special tokens in
    order, if the configuration does not list them."""

    cut: Cut
    specials: tuple[str, ...] = ()


_CLASSES: Mapping[str, _Class] = {
    # Kimi and Moonlight: the specials stand in added_tokens_decoder.
    "TikTokenTokenizer": _Class(CUTS["kimi-k2"]),
    # The first Qwen.
    "QWenTokenizer": _Class(
        CUTS["qwen2"],
        (
            *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
            *(f"<|extra_{i}|>" for i in range(205)),
        ),
    ),
}


def is_tiktoken(data: bytes) -> bool:
    """Whether the first line is one of this format."""
    return _LINE.fullmatch(data[:4096].partition(b"\n")[0].rstrip(b"\r")) is not None


def tiktoken_backend(data: bytes, config: Mapping[str, Any], source: str) -> Backend:
    """The tokenizer of such a file, by the class and tokens that tokenizer_config.json names."""
    named = config.get("tokenizer_class")
    known = _CLASSES.get(named) if isinstance(named, str) else None
    if known is None:
        raise UnsupportedModel(
            f"{source} says neither how text is cut nor which tokens are special, and the code of "
            f"tokenizer_class {str(named)[:60]!r} is not run; quire knows "
            f"{', '.join(_CLASSES)}. Save a tokenizer.json beside it, or pass tokenizer= with a "
            "directory that has one"
        )
    tokens = _tokens(data, source)
    letters = {number: letter for letter, number in byte_alphabet().items()}
    spelt = ["".join(letters[number] for number in token) for token in tokens]
    merges = [(spelt[left], spelt[right]) for left, right in merges_by_rank(tokens)]
    ids = {token: rank for rank, token in enumerate(spelt)}
    backend = byte_level_bpe(ids, merges, known.cut._replace(whole_words=True))
    _add_specials(backend, known.specials, config, len(tokens), source)
    return backend


def _tokens(data: bytes, source: str) -> list[bytes]:
    ranked: dict[int, bytes] = {}
    for number, line in enumerate(data.splitlines(), 1):
        if not line:
            continue
        found = _LINE.fullmatch(line)
        try:
            token = base64.b64decode(found[1], validate=True) if found else b""
        except binascii.Error:
            token = b""
        if found is None or not token or int(found[2]) in ranked:
            raise CorruptModel(f"{source}: line {number} is not a token in base64 and its own rank")
        ranked[int(found[2])] = token
    if not ranked or len(ranked) > _MOST_TOKENS or max(ranked) != len(ranked) - 1:
        raise CorruptModel(f"{source}: {len(ranked):,} tokens whose ranks do not count up from 0")
    tokens = [ranked[rank] for rank in range(len(ranked))]
    if len(set(tokens)) != len(tokens) or not {bytes([b]) for b in range(256)} <= set(tokens):
        raise CorruptModel(f"{source}: a token is there twice, or a byte of the 256 is not")
    return tokens


def _add_specials(
    backend: Backend, usual: Sequence[str], config: Mapping[str, Any], first: int, source: str
) -> None:
    """Tokens behind the vocabulary, each with its own number; unnamed ones between are reserved."""
    from tokenizers import AddedToken

    named = {first + i: token for i, token in enumerate(usual)}
    listed = config.get("added_tokens_decoder")
    for key, value in listed.items() if isinstance(listed, Mapping) else ():
        text = value.get("content") if isinstance(value, Mapping) else None
        if not key.isdecimal() or not isinstance(text, str) or not text:
            raise CorruptModel(f"added_tokens_decoder beside {source}: {key[:40]!r} is no token")
        if int(key) >= first:
            named[int(key)] = text
    last = max(named, default=first - 1)
    if last - first > _MOST_TOKENS:
        raise CorruptModel(f"added_tokens_decoder beside {source} goes up to {last:,}")
    numbers = range(first, last + 1)
    texts = [named.get(number, f"<|reserved_token_{number}|>") for number in numbers]
    backend.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in texts])
    for number, text in zip(numbers, texts, strict=True):
        if backend.token_to_id(text) != number:
            raise CorruptModel(f"beside {source}: token {number}, {text[:40]!r}, is there twice")
