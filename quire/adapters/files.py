"""Finds an adapter's files: in a directory, or in one from the Hub; and hashes them. No torch."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from quire.adapters.config import CONFIG
from quire.base.sha256 import sha256_of
from quire.errors import InvalidAdapter
from quire.weights.checkpoint import PICKLES, checked_file
from quire.weights.source import fetch_files

TENSORS = "adapter_model.safetensors"
_HUB_ID = re.compile(r"[\w-][\w.-]{0,95}/[\w-][\w.-]{0,95}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Stamp:
    """The state of a file when it was read: if it is unchanged, so are its bytes."""

    inode: int
    size: int
    modified: int  # nanoseconds
    changed: int  # nanoseconds (ctime); differs for copies that keep `modified`

    @classmethod
    def of(cls, path: Path) -> Stamp:
        found = path.stat()
        return cls(found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def stamps_of(directory: Path) -> tuple[Stamp, Stamp]:
    """The stamps of both files of an adapter."""
    return Stamp.of(directory / CONFIG), Stamp.of(directory / TENSORS)


def adapter_directory(
    path: str, *, download_dir: str | None = None, token: str | bool | None = None
) -> Path:
    """The directory that a lora_path names; fetched if it is a Hub id."""
    local = Path(os.path.expanduser(path))
    if os.path.exists(local):
        return local
    if not _HUB_ID.fullmatch(path):
        raise InvalidAdapter(
            f"lora_path {path!r} is no directory here, and not the form of a Hub id (owner/name)",
            parameter="lora_path",
            value=path,
        )
    return fetch_files(path, [CONFIG, TENSORS], download_dir=download_dir, token=token)


def tensor_file(directory: Path) -> Path:
    if not directory.is_dir():
        raise InvalidAdapter(
            f"{directory} is a file; give the directory that holds {CONFIG} and {TENSORS}",
            parameter="lora_path",
            value=str(directory),
        )
    if (directory / TENSORS).exists():
        return checked_file(directory, TENSORS)
    pickles = [name for name in sorted(os.listdir(directory)) if name.endswith(PICKLES)]
    if pickles:
        raise InvalidAdapter(
            f"{directory} has its tensors only as {pickles[0]}, a pickle, which can run code when "
            "it is loaded. Load it with peft in an environment you can lose, and save it with "
            "save_pretrained(..., safe_serialization=True).",
            parameter="lora_path",
            value=pickles[0],
        )
    raise InvalidAdapter(
        f"{directory} holds no {TENSORS}", parameter="lora_path", value=str(directory)
    )


def digest_of(directory: Path) -> str:
    """A hash of all bytes of an adapter."""
    made = hashlib.sha256()
    for name in (CONFIG, TENSORS):
        made.update(bytes.fromhex(sha256_of(checked_file(directory, name))))
    return made.hexdigest()
