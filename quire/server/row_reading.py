"""A row that is in the engine, with its outputs for the one task that reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from quire.openai_api.errors import ApiError, bad
from quire.openai_api.outputs import Output
from quire.server.services import Lane


class RowReading:
    """A row and its outputs, for one reader. Thousands may wait, so a plain list is used: an
    asyncio.Queue takes three kilobytes."""

    def __init__(
        self, number: int, message: msgspec.Raw, lane: Lane, *, is_asked_once: bool = False
    ) -> None:
        self.number, self.message, self.lane = number, message, lane
        self._came: list[Output | ApiError] = []
        self._awaited: asyncio.Future[None] | None = None
        self.was_shown = self.is_over = False
        self.asked_at = 0.0  # when it was last given to an engine, by the monotonic clock
        self.num_deaths = 0  # engines that died with this row on the device
        # Rows of batches are not asked again here: their dispatcher does that.
        self.most_deaths = 0 if is_asked_once else 1

    def give(self, one: Output | ApiError) -> None:
        self.is_over = isinstance(one, ApiError) or one.finished
        self.was_shown = True
        self._came.append(one)
        if self._awaited is not None and not self._awaited.done():
            self._awaited.set_result(None)

    @property
    def num_unread(self) -> int:
        return len(self._came)

    async def next(self) -> Output | ApiError:
        while not self._came:
            self._awaited = asyncio.get_running_loop().create_future()
            await self._awaited
        return self._came.pop(0)


def encoded_row(message: Mapping[str, Any]) -> msgspec.Raw:
    """The encoded message of a row; ApiError for text that cannot be encoded, so that only this row
    fails and not those that are sent together with it."""
    try:
        return msgspec.Raw(msgspec.json.encode(message))
    except UnicodeEncodeError as error:
        half = f"U+{ord(error.object[error.start]):04X}"
        raise bad(
            f"a text of the body holds half of a surrogate pair ({half}), which is not valid "
            "Unicode; leave it out"
        ) from None
