"""Reads SentencePiece's own files (tokenizer.model) as metadata in the form of GGUF files.

Such a file is a protobuf message with these fields: pieces (1), with a text (1), a score (2) and a
type (3); the training (2), of which only the kind (3) matters; and the normalizer (3), with a table
of characters (2), a space before the first word (3), and runs of spaces made one (4).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from quire.errors import CorruptModel, UnsupportedModel

Value = int | bytes
_KINDS = {1: "t5", 2: "llama"}  # unigram and BPE; absent means unigram
_SIZES = {1: 8, 5: 4}  # of numbers that are stored whole, by the kind of field
_MOST_PIECES = 1 << 22


def sentencepiece_metadata(data: bytes, source: str) -> dict[str, Any] | None:
    """The metadata that a GGUF file of this vocabulary has; None for bytes of another format."""
    try:
        fields = list(_fields(data))
    except (IndexError, struct.error, ValueError):
        return None
    pieces = [_piece(value) for number, value in fields if number == 1]
    trained, normalised = (_last(fields, number) for number in (2, 3))
    if not pieces or None in pieces or trained is None:
        return None
    kind = trained.get(3, 1)
    if kind not in _KINDS or len(pieces) > _MOST_PIECES:
        raise UnsupportedModel(
            f"{source}: {len(pieces):,} SentencePiece pieces of the kind {kind!r}; quire builds "
            "unigram (1) and BPE (2)"
        )
    texts, scores, types = zip(*(one for one in pieces if one is not None), strict=True)
    rules = normalised or {}
    metadata: dict[str, Any] = {
        "model": _KINDS[kind],
        "tokens": list(texts),
        "scores": list(scores),
        "token_type": list(types),
        "add_space_prefix": bool(rules.get(3, 1)),
        "remove_extra_whitespaces": bool(rules.get(4, 1)),
        "precompiled_charsmap": rules.get(2, b""),
    }
    # Ids of special tokens are -1, as a number of ten bytes, where there are none.
    for number, name, usual in ((40, "unknown", 0), (41, "bos", 1), (42, "eos", 2)):
        token = trained.get(number, usual)
        if not isinstance(token, int):
            raise CorruptModel(f"{source}: the id of the {name} token is no number")
        if token < len(texts):
            metadata[f"{name}_token_id"] = token
    return {f"tokenizer.ggml.{key}": value for key, value in metadata.items()}


def _piece(value: Value) -> tuple[str, float, int] | None:
    said = _message(value)
    if said is None or not isinstance(text := said.get(1), bytes):
        return None
    score, kind = said.get(2, b"\0" * 4), said.get(3, 1)
    if not isinstance(score, bytes) or len(score) != 4 or not isinstance(kind, int):
        return None
    try:
        return text.decode(), struct.unpack("<f", score)[0], kind
    except UnicodeDecodeError:
        return None


def _last(fields: list[tuple[int, Value]], number: int) -> dict[int, Value] | None:
    found = [value for at, value in fields if at == number]
    return _message(found[-1]) if found else None


def _message(value: Value) -> dict[int, Value] | None:
    if not isinstance(value, bytes):
        return None
    try:
        return dict(_fields(value))
    except (IndexError, struct.error, ValueError):
        return None


def _fields(data: bytes) -> Iterator[tuple[int, Value]]:
    """(number, value) of each field of a message; numbers that are stored whole as their bytes."""
    at = 0
    while at < len(data):
        tag, at = _number(data, at)
        kind = tag & 7
        if kind == 0:
            value, at = _number(data, at)
            yield tag >> 3, value
            continue
        if kind == 2:
            size, at = _number(data, at)
        elif kind in _SIZES:
            size = _SIZES[kind]
        else:
            raise ValueError(f"a field of the kind {kind}")
        if size > len(data) - at:
            raise ValueError("a field that ends behind the message")
        yield tag >> 3, data[at : at + size]
        at += size


def _number(data: bytes, at: int) -> tuple[int, int]:
    found = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        found |= (byte & 127) << shift
        if byte < 128:
            return found, at
    raise ValueError("a number of more than ten bytes")
