"""Files of a model by what is in them, for replicas on machines that share no disk."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_CHUNK = 1 << 22


def hashed(files: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The stamps, each with its hash."""
    return [{**each, "sha256": each.get("sha256") or _sha256(Path(each["path"]))} for each in files]


def _sha256(path: Path) -> str:
    made = hashlib.sha256()
    with open(path, "rb") as file:
        while data := file.read(_CHUNK):
            made.update(data)
    return made.hexdigest()
