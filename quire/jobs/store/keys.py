"""Keys of rows, and what is made from them: seeds, content hashes, and tables of keys."""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Mapping
from typing import Any

_EMPTY = 0
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=str)


def row_seed(job_seed: int, key: str) -> int:
    """The seed of a row's noise. It depends only on the job's seed and the row's key, so that no
    order, shard or resumption changes the tokens drawn."""
    digest = hashlib.blake2b(f"{job_seed}\0{key}".encode("utf-8", "surrogatepass"), digest_size=8)
    return int.from_bytes(digest.digest(), "big") >> 1


class ContentHash:
    """Hashes everything that a row asks; the common part of all rows is hashed only once."""

    def __init__(self, common: Any) -> None:
        self._common = hashlib.blake2b(_canonical(common), digest_size=16)

    def of(self, asked: Mapping[str, Any], seed: int | None) -> tuple[str, int]:
        """The hash, and how many bytes went into it."""
        digest, data = self._common.copy(), _canonical([asked, seed])
        digest.update(data)
        return digest.hexdigest(), len(data)


def _canonical(value: Any) -> bytes:
    return _ENCODER.encode(value).encode("ascii")


class KeyTable:
    """Maps keys to positions by their 64-bit fingerprints: 24 to 48 bytes a key, a dict takes 200.

    Among a million keys two have the same fingerprint with a probability of 3 in 10^8; to be
    certain, compare the key of the record at the position.
    """

    def __init__(self) -> None:
        self._prints, self._values = array("Q", [_EMPTY]) * 1024, array("Q", [0]) * 1024
        self._count = 0

    def put(self, key: str, value: int) -> bool:
        """Set the key's value; whether it was there before."""
        if 3 * self._count >= 2 * len(self._prints):
            self._grow()
        fingerprint = _fingerprint(key)
        found = self._slot(fingerprint)
        was_there = self._prints[found] != _EMPTY
        self._prints[found], self._values[found] = fingerprint, value
        self._count += not was_there
        return was_there

    def get(self, key: str) -> int | None:
        slot = self._slot(_fingerprint(key))
        return None if self._prints[slot] == _EMPTY else self._values[slot]

    def _slot(self, fingerprint: int) -> int:
        """Where the fingerprint is, or belongs."""
        mask = len(self._prints) - 1
        slot = fingerprint & mask
        while self._prints[slot] not in (_EMPTY, fingerprint):
            slot = slot + 1 & mask
        return slot

    def _grow(self) -> None:
        prints, values = self._prints, self._values
        size = 2 * len(prints)
        self._prints, self._values = array("Q", [_EMPTY]) * size, array("Q", [0]) * size
        for fingerprint, value in zip(prints, values, strict=True):
            if fingerprint != _EMPTY:
                slot = self._slot(fingerprint)
                self._prints[slot], self._values[slot] = fingerprint, value


def _fingerprint(key: str) -> int:
    digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") | 1  # never _EMPTY
