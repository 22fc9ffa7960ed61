"""The files on which a model's answers depend: its own, its tokenizer's, and those that options
name. Stored answers are kept with their hashes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.weights.source import ModelFiles, locate

_MODEL = (".json", ".safetensors", ".gguf")
_TOKENIZER = ("tokenizer", "special_tokens", "added_tokens", "chat_template", "vocab", "merges")
_TOKENIZER_SUFFIXES = (".json", ".jinja", ".model", ".txt", ".tiktoken")
_ANY_NAME = (".model", ".tiktoken")  # spiece.model, qwen.tiktoken: always a vocabulary
_GENERATION = "generation_config.json"
_MORE_TEMPLATES = "additional_chat_templates"
_MODULES = "modules.json"  # of sentence-transformers: further modules lie in folders


@dataclass(frozen=True, slots=True)
class MadeOf:
    """The files of a model, and those of its tokenizer and template."""

    model: tuple[Path, ...]
    tokenizer: tuple[Path, ...]


def made_of(model: str, options: Mapping[str, Any]) -> MadeOf:
    """The files; missing ones are fetched, as for loading."""
    dummy = options.get("load_format") == "dummy"
    found = _located(model, options, "revision", weights=not dummy)
    named = options.get("tokenizer")
    tokenizer = found
    if named is not None and named != model:
        tokenizer = _located(named, options, "tokenizer_revision", weights=False)
    model_files = _model_files(found)
    if options.get("trust_remote_code") and found.kind == "hf":
        model_files += sorted(found.path.glob("*.py"))
    model_files += _if_file(options.get("generation_config"), _GENERATION)
    return MadeOf(
        tuple(model_files),
        (*_tokenizer_files(tokenizer), *_if_file(options.get("chat_template"))),
    )


def _located(model: str, options: Mapping[str, Any], revision: str, *, weights: bool) -> ModelFiles:
    return locate(
        model,
        revision=options.get(revision),
        download_dir=options.get("download_dir"),
        token=options.get("hf_token"),
        weights=weights,
        trust_remote_code=bool(options.get("trust_remote_code")),
    )


def _model_files(found: ModelFiles) -> list[Path]:
    if found.kind == "gguf":
        return sorted({found.path, *(tensor.path for tensor in found.stored_tensors().values())})
    whole, folders = found.modules_path, {found.modules_path, found.path}
    if (whole / _MODULES).exists():
        folders.update(config.parent for config in whole.glob("*/config.json"))
    return [
        path
        for folder in sorted(folders)
        for path in sorted(folder.iterdir())
        if path.suffix in _MODEL and not path.name.startswith(_TOKENIZER) and path.is_file()
    ]


def _tokenizer_files(found: ModelFiles) -> list[Path]:
    if found.kind == "gguf":
        return [found.path]
    own = [path for path in sorted(found.path.iterdir()) if _is_of_tokenizer(path)]
    return [*own, *sorted((found.path / _MORE_TEMPLATES).glob("*.jinja"))]


def _is_of_tokenizer(path: Path) -> bool:
    named = path.name.startswith(_TOKENIZER) and path.suffix in _TOKENIZER_SUFFIXES
    return (named or path.suffix in _ANY_NAME) and path.is_file()


def _if_file(given: Any, *inside: str) -> list[Path]:
    """The file that an option names, if its value is the path of a file."""
    if not isinstance(given, str | Path):
        return []
    try:
        path = Path(given, *inside)
        return [path.absolute()] if path.is_file() else []
    except (OSError, ValueError):  # a template: too long for a name, or with a NUL in it
        return []
