"""Keys of callers: 256 random bits, of which only hashes are stored."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from quire.base.system import sync
from quire.errors import InvalidOption

PREFIX = "sk-quire-"
FILE_NAME = "keys"
SHORTEST = 16  # characters of a key given with --api-key
_ID_DIGITS = 16


def new_key() -> str:
    return PREFIX + secrets.token_urlsafe(32)


def hash_of(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()


class Keys:
    """The hashes of all keys. Without any, every program on this machine may call."""

    def __init__(self, hashes: Iterable[str] = ()) -> None:
        self._hashes = tuple(hashes)

    def __bool__(self) -> bool:
        return bool(self._hashes)

    def id_of(self, key: str) -> str | None:
        """The id of a key, None for an unknown one. It takes the same time for all keys."""
        given, found = hash_of(key), None
        for known in self._hashes:
            if hmac.compare_digest(given, known):
                found = known[:_ID_DIGITS]
        return found


def open_keys(folder: Path, given: Iterable[str] = (), *, more: bool = False) -> tuple[Keys, str]:
    """The keys of a data folder and those `given`, and the text of a new key, "" if none was made.
    One is made if there is none yet, or with `more`. The caller stores it with `keep` when it is
    shown, so that a start that fails leaves no key that was never shown."""
    chosen = list(given)
    for key in chosen:
        if len(key) < SHORTEST or not key.isascii() or not key.isprintable() or " " in key:
            raise InvalidOption(
                f"an API key has at least {SHORTEST} printable ASCII characters and no space",
                parameter="api_key",
            )
    hashes = _kept(folder)
    made = new_key() if more or not (hashes or chosen) else ""
    return Keys([*hashes, *map(hash_of, [*chosen, *filter(None, [made])])]), made


def keep(folder: Path, made: str) -> None:
    """Store the hash of a new key; it is on disk when this returns."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    hashes = [*_kept(folder), hash_of(made)]
    _write(folder / FILE_NAME, "".join(f"{each}\n" for each in hashes))


def _kept(folder: Path) -> list[str]:
    path = folder / FILE_NAME
    return path.read_text(encoding="ascii").split() if path.exists() else []


def _write(path: Path, text: str) -> None:
    """Write the whole file or nothing; it is on disk when this returns."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
        file.flush()
        sync(file.fileno())
    os.replace(beside, path)
