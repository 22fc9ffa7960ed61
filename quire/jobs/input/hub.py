"""Data sets of the Hugging Face Hub, read as plain files: none of their code is run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from quire.errors import InvalidOption

PREFIX = "hf:"
_NAME = re.compile(
    r"hf:(?P<repo>[\w.-]+/[\w.-]+)(?:/(?P<subset>[\w./-]+))?(?::(?P<split>[\w.-]+))?", re.ASCII
)
_ENDINGS = (".parquet", ".jsonl", ".jsonl.gz", ".jsonl.zst", ".csv", ".arrow")


def files_of_hub(name: str) -> list[Path]:
    """The files of `hf:owner/name[/subset][:split]`, fetched if need be; the split is "train"
    unless named."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise _refused(name, "is not of the form hf:owner/name[/subset][:split]")
    repo, subset, split = match["repo"], match["subset"], match["split"] or "train"
    within = f"{subset}/" if subset else ""
    patterns = [f"{within}*{split}*{ending}" for ending in _ENDINGS]
    root = _snapshot(name, repo, patterns)
    for ending in _ENDINGS:
        found = [p for p in root.rglob("*" + ending) if _is_of(p.relative_to(root), within, split)]
        if found:
            return sorted(found)
    raise _refused(
        name,
        f"has no {', '.join(_ENDINGS)} file for the split {split!r}"
        + (f" in {subset!r}" if subset else ""),
    )


def _is_of(path: Path, within: str, split: str) -> bool:
    """Whether the path names the split as a word: train-00000-of-00001, data/train/0."""
    text = path.as_posix()
    named = re.search(rf"(?<![a-z0-9]){re.escape(split)}(?![a-z0-9])", text[len(within) :])
    return text.startswith(within) and named is not None


def _snapshot(name: str, repo: str, patterns: list[str]) -> Path:
    import huggingface_hub
    from huggingface_hub import errors

    # The errors of huggingface_hub's HTTP client are base classes of its own HTTP error.
    bases: tuple[Any, ...] = errors.HfHubHTTPError.__bases__
    raised = (*bases, errors.HFValidationError, OSError)
    try:
        return Path(
            huggingface_hub.snapshot_download(repo, repo_type="dataset", allow_patterns=patterns)
        )
    except raised as error:
        first = (str(error).strip().splitlines() or ["no reason given"])[0][:300]
        raise _refused(
            name,
            f"could not be fetched ({type(error).__name__}: {first}); check the name, set HF_TOKEN "
            "if it is private, or give local files",
        ) from error


def _refused(name: str, why: str) -> InvalidOption:
    return InvalidOption(f"the data set {name!r} {why}", parameter="input", value=name)
