"""Files of a model by what is in them, for replicas on machines that share no disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from quire.base.sha256 import sha256_of


def hashed(files: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The stamps, each with its hash."""
    return [
        {**each, "sha256": each.get("sha256") or sha256_of(Path(each["path"]))} for each in files
    ]
