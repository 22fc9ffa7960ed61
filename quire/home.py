"""Where quire keeps what it can fetch or make again."""

from __future__ import annotations

import os
from pathlib import Path


def quire_home() -> Path:
    """QUIRE_HOME, else a folder in the user's cache; deletable at any time."""
    if home := os.environ.get("QUIRE_HOME"):
        return Path(home).expanduser()
    caches = os.environ.get("XDG_CACHE_HOME")
    return (Path(caches) if caches else Path.home() / ".cache") / "quire"
