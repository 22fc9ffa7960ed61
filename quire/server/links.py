"""Links to download by: each works once, within a minute, for whoever follows it.

A browser shows no key when it follows a link, so the page asks for one of these with its key.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

LIFE = 60.0  # seconds
MOST = 1000  # that are open at once; the oldest gives way


@dataclass(frozen=True, slots=True)
class Linked:
    """What a link leads to. `temporary`: made for this link, and removed with it."""

    path: Path
    filename: str
    media_type: str
    inline: bool = False
    temporary: bool = False


class Links:
    """Known by the hashes of their tokens, in memory: a restart ends them all."""

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
        """What the link leads to, this once."""
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
