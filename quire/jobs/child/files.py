"""Which files a model and its tokenizer are made of: what a job's results depend on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from quire.jobs.store.stamps import FileStamp
from quire.replicas.wire import Message
from quire.weights.source import ModelFiles, locate

_MODEL = (".json", ".safetensors", ".gguf")
_TOKENIZER = ("tokenizer", "special_tokens", "added_tokens", "chat_template", "vocab", "merges")
_TOKENIZER_SUFFIXES = (".json", ".jinja", ".model", ".txt", ".tiktoken")


def files_of(model: str, options: Mapping[str, Any]) -> Message:
    """The stamps of both; fetches what is not there yet, as loading would."""
    dummy = options.get("load_format") == "dummy"
    found = _located(model, options, "revision", weights=not dummy)
    named = options.get("tokenizer")
    tokenizer = found
    if named is not None and named != model:
        tokenizer = _located(named, options, "tokenizer_revision", weights=False)
    return {
        "model_files": _stamps(_model_files(found)),
        "tokenizer_files": _stamps(_tokenizer_files(tokenizer)),
    }


def _located(model: str, options: Mapping[str, Any], revision: str, *, weights: bool) -> ModelFiles:
    return locate(
        model,
        revision=options.get(revision),
        download_dir=options.get("download_dir"),
        token=options.get("hf_token"),
        weights=weights,
    )


def _model_files(found: ModelFiles) -> list[Path]:
    if found.kind == "gguf":
        return [found.path]
    return [
        path
        for path in sorted(found.path.iterdir())
        if path.suffix in _MODEL and not path.name.startswith(_TOKENIZER)
    ]


def _tokenizer_files(found: ModelFiles) -> list[Path]:
    if found.kind == "gguf":
        return [found.path]
    return [
        path
        for path in sorted(found.path.iterdir())
        if path.name.startswith(_TOKENIZER) and path.suffix in _TOKENIZER_SUFFIXES
    ]


def _stamps(paths: list[Path]) -> list[Message]:
    return [asdict(FileStamp.of(path)) for path in paths]
