"""Serials: a number for each content of media, never given twice."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from itertools import count
from weakref import WeakValueDictionary

from quire.request import MediaItem

MOST_KNOWN = 1 << 17  # contents; the encoder computes a dropped content again if it comes back


def content_hash(about: bytes, data: bytes) -> bytes:
    """A hash of some bytes and of facts about them."""
    made = hashlib.blake2b(len(about).to_bytes(8, "little") + about, digest_size=32)
    made.update(data)
    return made.digest()


class Serials:
    """The items of one LLM, by everything that determines the output of their encoder."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._serials: OrderedDict[tuple[bytes, str], int] = OrderedDict()
        self._alive: WeakValueDictionary[int, MediaItem] = WeakValueDictionary()

    def item(self, key: tuple[bytes, str], make: Callable[[int], MediaItem]) -> MediaItem:
        """The item of this content: the one in use, or else a new one with the content's serial."""
        serial = self._serials.get(key)
        if serial is None:
            serial = self._serials[key] = next(self._numbers)
            if len(self._serials) > MOST_KNOWN:
                self._serials.popitem(last=False)
        else:
            self._serials.move_to_end(key)
        found = self._alive.get(serial)
        if found is None:
            found = self._alive[serial] = make(serial)
        return found
