"""Whether a file is still the same: by its stamp if that is unchanged, else by its hash.

A stamp (inode, size, times of change) changes whenever bytes change, so a job that continues need
not read gigabytes again if the stamps are the same. A copy has another stamp, and then the hashes
are compared.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from quire.base.sha256 import sha256_of

MODEL_FILES = ("model_files", "tokenizer_files")  # of a manifest, and of what an engine says
_CHANGED = "changed"  # stands in place of a stamp


@dataclass(frozen=True, slots=True)
class FileStamp:
    """One file as it was found; `sha256` is filled in once all of it was read."""

    path: str
    size: int
    stamp: str
    sha256: str | None = None

    @classmethod
    def of(cls, path: Path) -> FileStamp:
        found = os.stat(path)
        stamp = f"{found.st_dev}:{found.st_ino}:{found.st_mtime_ns}:{found.st_ctime_ns}"
        return cls(str(path), found.st_size, stamp)

    def hashed(self) -> FileStamp:
        """The same with its hash, computed now if it is not known; without a hash if the file has
        changed meanwhile."""
        if self.sha256 is not None:
            return self
        path = Path(self.path)
        found = _hash_of_blob(path) or sha256_of(path)
        is_same = FileStamp.of(path).stamp == self.stamp
        return replace(self, sha256=found) if is_same else self

    def same_as(self, now: FileStamp) -> bool:
        """Whether `now` has the same bytes. If a hash was never taken, a file with another stamp
        counts as another file."""
        if self.size != now.size:
            return False
        if self.stamp == now.stamp:
            return True
        return self.sha256 is not None and self.sha256 == now.hashed().sha256

    def read_while_changed(self) -> FileStamp:
        """A stamp that equals no other, if the file has changed since it was found."""
        gone_or_same = not os.path.exists(self.path) or self.same_as(FileStamp.of(Path(self.path)))
        return self if gone_or_same else replace(self, stamp=_CHANGED, sha256=None)

    @property
    def described(self) -> str:
        if self.stamp == _CHANGED:
            return "changed while it was read"
        return f"{self.size} bytes" + (f", sha256 {self.sha256[:12]}" if self.sha256 else "")


def model_stamps(facts: Mapping[str, Any]) -> dict[str, tuple[FileStamp, ...]]:
    """The files of a model and of its tokenizer, as an engine reports them when it is ready."""
    return {name: tuple(FileStamp(**each) for each in facts.get(name, ())) for name in MODEL_FILES}


def _hash_of_blob(path: Path) -> str | None:
    """The SHA-256 in the file's name: the Hub's cache names large files so."""
    if not path.is_symlink():
        return None
    name = Path(os.readlink(path)).name
    is_hash = len(name) == 64 and all(c in "0123456789abcdef" for c in name)
    return name if is_hash else None


class Hashing(threading.Thread):
    """Hashes files while other work goes on; read `files` when it is no longer alive."""

    def __init__(self, files: Iterable[FileStamp]) -> None:
        super().__init__(name="quire-hashing", daemon=True)
        self.files = tuple(files)
        self.start()

    def run(self) -> None:
        # A file that went away stays without a hash; reading its rows fails.
        with suppress(OSError):
            self.files = tuple(file.hashed() for file in self.files)
