"""Links for downloads: each works once, within a minute, and without a key.

A browser sends no key when it follows a link, so the page first requests such a link with its key.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

LIFE = 60.0  # seconds
MOST = 1000  # open links; with more the oldest is dropped


@dataclass(frozen=True, slots=True)
class Linked:
    """The file of a link. A `temporary` one was made for the link, and is removed with it."""

    path: Path
    filename: str
    media_type: str
    inline: bool = False
    temporary: bool = False


class Links:
    """All open links, by the hashes of their tokens; only in memory, so a restart ends them."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[float, Linked]] = {}

    def make(self, download: Linked) -> str:
        """The token of a new link."""
        self.drop_old()
        if len(self._open) >= MOST:
            self._drop(next(iter(self._open)))
        token = secrets.token_urlsafe(32)
        self._open[_hashed(token)] = time.monotonic() + LIFE, download
        return token

    def take(self, token: str) -> Linked | None:
        """The file of the link, which ends with this call; None if there is no such link."""
        self.drop_old()
        found = self._open.pop(_hashed(token), None)
        return None if found is None else found[1]

    def drop_old(self) -> None:
        now = time.monotonic()
        for name in [name for name, (until, _) in self._open.items() if until < now]:
            self._drop(name)

    def _drop(self, name: str) -> None:
        _, download = self._open.pop(name)
        if download.temporary:
            download.path.unlink(missing_ok=True)


def _hashed(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()
