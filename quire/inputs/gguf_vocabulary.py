"""Reads the tokenizer's metadata of a GGUF file: the tokens with their types, and other values. A
value of the wrong type is refused with the name of its key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np

from quire.errors import CorruptModel
from quire.inputs.gguf_wordpiece import as_written

NORMAL, CONTROL, USER_DEFINED, BYTE = 1, 3, 4, 6  # types of tokens; a normal one is its text
Default = TypeVar("Default", bool, None)
_NO_TOKEN = 2**32 - 1  # how some writers say "none"


class Vocabulary(NamedTuple):
    tokens: list[str]
    types: list[int]


def checked(metadata: Mapping[str, Any], key: str, kind: type) -> Any:
    value = metadata.get(f"tokenizer.ggml.{key}")
    if not isinstance(value, kind):
        found = "nothing" if value is None else type(value).__name__
        raise CorruptModel(
            f"the GGUF file's tokenizer.ggml.{key} should be a {kind.__name__}, found {found}"
        )
    return value


def numbers(metadata: Mapping[str, Any], key: str, count: int) -> list[Any] | None:
    values = metadata.get(f"tokenizer.ggml.{key}")
    if values is None:
        return None
    values = values.tolist() if hasattr(values, "tolist") else values
    if not isinstance(values, list) or not all(type(v) in (int, float) for v in values):
        raise wrong(metadata, key, "an array of numbers")
    if len(values) != count:
        raise CorruptModel(
            f"the GGUF file has {count} tokens, but {len(values)} entries in tokenizer.ggml.{key}"
        )
    return values


def strings(metadata: Mapping[str, Any], key: str) -> list[str]:
    values = metadata.get(f"tokenizer.ggml.{key}")
    if values is None:
        raise CorruptModel(f"the GGUF file has no tokenizer.ggml.{key}")
    if not isinstance(values, list) or not all(type(v) is str for v in values):
        raise wrong(metadata, key, "an array of texts")
    return list(values)


def flag(metadata: Mapping[str, Any], key: str, default: Default) -> bool | Default:
    if (name := f"tokenizer.ggml.{key}") not in metadata:
        return default
    value = metadata[name]
    if not isinstance(value, bool):
        raise wrong(metadata, key, "true or false")
    return value


def wrong(metadata: Mapping[str, Any], key: str, rule: str) -> CorruptModel:
    value = metadata[f"tokenizer.ggml.{key}"]
    shown = repr(value)[:60] if isinstance(value, bool | int | float | str) else "another array"
    return CorruptModel(f"the GGUF file's tokenizer.ggml.{key} must be {rule}; it is {shown}")


def read_vocabulary(metadata: Mapping[str, Any], model: str) -> Vocabulary:
    tokens = strings(metadata, "tokens")
    types = numbers(metadata, "token_type", len(tokens)) or [NORMAL] * len(tokens)
    if model == "bert":
        tokens = as_written(tokens, [kind == CONTROL for kind in types])
    for index, kind in enumerate(types):
        if kind == USER_DEFINED:  # matched in the text as it is written, before "▁" stands for " "
            tokens[index] = tokens[index].replace("▁", " ")
    if not tokens or len(set(tokens)) != len(tokens):
        seen: dict[str, int] = {}
        for index, token in enumerate(tokens):
            if token in seen:
                raise CorruptModel(
                    f"the GGUF file's tokens {seen[token]} and {index} are both {token!r}"
                )
            seen[token] = index
        raise CorruptModel("the GGUF file's vocabulary is empty")
    return Vocabulary(tokens, types)


def token_id(metadata: Mapping[str, Any], key: str, vocabulary: Vocabulary) -> int | None:
    value = metadata.get(f"tokenizer.ggml.{key}")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise wrong(metadata, key, "a token id")
    if value != _NO_TOKEN and not 0 <= value < len(vocabulary.tokens):
        raise CorruptModel(
            f"the GGUF file's tokenizer.ggml.{key} is {value}, its vocabulary has "
            f"{len(vocabulary.tokens)} tokens"
        )
    return None if value == _NO_TOKEN else int(value)
