"""Where quire keeps what it can fetch or make again."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def quire_home() -> Path:
    """QUIRE_HOME, else a folder in the user's cache; deletable at any time."""
    if home := os.environ.get("QUIRE_HOME"):
        return Path(home).expanduser()
    caches = os.environ.get("XDG_CACHE_HOME")
    return (Path(caches) if caches else Path.home() / ".cache") / "quire"


def kept(name: str) -> dict[str, Any]:
    """What earlier processes kept in this file; one that says something else counts as absent."""
    try:
        stored = json.loads((quire_home() / name).read_text())
    except (OSError, ValueError):
        return {}
    return stored if isinstance(stored, dict) else {}


def keep(name: str, key: str, entry: object) -> None:
    """Keep an entry beside the others if that is possible; finding it out again costs little."""
    path = quire_home() / name
    mine = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(mine, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump({**kept(name), key: entry}, file)
        mine.replace(path)
    except OSError:
        return
