"""The default model's tokenizer is read once in a process: hundreds of small models have it, and
reading it took nine tenths of opening one of them."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from quire.inputs import gguf_tokenizer, hf_tokenizer
from quire.inputs.tokenizer import Tokenizer
from quire.weights import gguf_file, source
from quire.weights.gguf_file import GgufFile

_Stat = tuple[str, int, int]


@contextmanager
def read_once() -> Iterator[None]:
    """What is kept is the metadata and the tables made of them; nothing stays open or mapped, and
    whoever changes a tokenizer's backend copies it first."""
    with pytest.MonkeyPatch.context() as patch:
        _keep_gguf(patch)
        _keep_directories(patch)
        yield


def _keep_gguf(patch: pytest.MonkeyPatch) -> None:
    files: dict[_Stat, GgufFile] = {}
    parts: dict[_Stat, list[Path]] = {}
    tokenizers: dict[int, Tokenizer] = {}
    build = gguf_tokenizer._built

    def opened(path: str | Path) -> GgufFile:
        if not _is_large(path):
            return GgufFile(path)
        key = _stat(path)
        if key not in files:
            files[key] = GgufFile(path)
            parts[key] = [*files[key]._bytes]
            files[key]._bytes = {}
        made = copy.copy(files[key])
        made._bytes = {part: gguf_file._mapped(part) for part in parts[key]}
        return made

    def built(metadata: Mapping[str, Any], prefix_once: bool) -> Tokenizer:
        if prefix_once or not any(metadata is kept.metadata for kept in files.values()):
            return build(metadata, prefix_once)
        if id(metadata) not in tokenizers:
            tokenizers[id(metadata)] = build(metadata, prefix_once)
        return _another(tokenizers[id(metadata)])

    patch.setattr(source, "GgufFile", opened)
    patch.setattr(gguf_tokenizer, "_built", built)


def _keep_directories(patch: pytest.MonkeyPatch) -> None:
    tokenizers: dict[tuple[_Stat, ...], Tokenizer] = {}
    build = hf_tokenizer._built

    def built(directory: Path) -> Tokenizer:
        if not _is_large(directory / "tokenizer.json"):
            return build(directory)
        key = tuple(sorted(_stat(path) for path in directory.iterdir()))
        if key not in tokenizers:
            tokenizers[key] = build(directory)
        return _another(tokenizers[key])

    patch.setattr(hf_tokenizer, "_built", built)


def _is_large(path: str | Path) -> bool:
    """Has the default model's vocabulary; those that tests make up are small, and read anew."""
    return os.path.isfile(path) and os.path.getsize(path) > 1 << 20


def _stat(path: str | Path) -> _Stat:
    about = os.stat(path)
    return os.path.realpath(path), about.st_mtime_ns, about.st_size


def _another(tokenizer: Tokenizer) -> Tokenizer:
    made = copy.copy(tokenizer)
    made.chat_templates = dict(made.chat_templates)
    return made
