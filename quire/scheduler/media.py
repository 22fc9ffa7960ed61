"""Media in plans: which items are encoded, which stay, and which rows of theirs a slice takes.

The executor keeps encoded items on a shelf. This module counts what lies there, in rows of encoder
output. An item is encoded whole and once, in the plan whose slice first enters its span, and stays
while a row is inside a span of it. After that it may be dropped, the longest unused first. A slice
ends before a span whose item finds no room in this plan. Some slice can always go on: a row inside
a span has its item already, and if no row is inside one, any item fits, however large.

An item of audio that all tokens of a row attend to (`heard`) stays as long as the row runs, and no
row begins before there is room for its item.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

import numpy as np

from quire.request import Ints, MediaItem, Request, Span
from quire.scheduler.rows import Rows
from quire.step import Encode, MediaPart

# Of a slice: its parts of media, its coordinates, and the runs of tokens that see each other.
Shown = tuple[tuple[MediaPart, ...], Ints | None, Ints | None]
_NOTHING: Shown = ((), None, None)


class MediaPlans:
    """What the executor's shelf holds, and how the plan that is being made changes it."""

    def __init__(self, rows: Rows, shelf_rows: int, most_encoded: int) -> None:
        """The shelf has room for `shelf_rows` rows; a plan encodes at most `most_encoded` rows, or
        one larger item."""
        self._rows, self._shelf_rows, self._most_encoded = rows, shelf_rows, most_encoded
        self._held: OrderedDict[int, int] = OrderedDict()  # rows of each serial, oldest use first
        self._num_held = 0
        self._kept: set[int] = set()  # serials that must stay on the shelf for this plan
        self._encode: list[Encode] = []
        self._forgotten: list[int] = []
        self._some_hear = False  # a row with a `heard` item was planned so far
        self.num_encoded = 0  # items, in all plans

    def begin(self) -> None:
        """A plan is begun: keep the items of rows inside a span, and those that rows hear."""
        self._kept.clear()
        if not self._held:
            return
        rows = self._rows
        if self._some_hear:
            hearing = (rows.sequence(row).request.heard for row in rows.running.tolist())
            self._kept.update(item.serial for item in hearing if item is not None)
        for row in rows.running[~rows.drawn[rows.running]].tolist():
            computed = int(rows.computed[row])
            for span in rows.sequence(row).request.media:
                if span.start < computed < span.end:
                    self._kept.add(span.item.serial)

    def reach(self, request: Request, start: int, end: int) -> int:
        """How far a slice from `start` to `end` can go; the items up to there are on the shelf or
        in this plan. Raises the error of preparing an item again."""
        if request.heard is not None:
            self._some_hear = True
            return end if self._find(request.heard) else start
        for span in _entered(request, start, end):
            end = _uncut(span, start, end)
            if end <= max(span.start, start):
                return end
            if not self._find(span.item):
                return int(span.places[np.searchsorted(span.places, start)])
        return end

    def can_begin(self, request: Request, start: int, budget: int) -> bool:
        """Whether a slice from `start` on, of at most `budget` tokens, can compute any token."""
        if request.heard is not None:
            return request.heard.serial in self._held or self._has_room(request.heard)
        for span in _entered(request, start, start + 1):
            if _uncut(span, start, start + budget) <= start:
                return False
            if span.item.serial not in self._held and not self._has_room(span.item):
                return False
        return True

    def shown(self, request: Request, start: int, end: int) -> Shown:
        """The parts of its request's media that a slice from `start` to `end` takes."""
        if not request.media:
            return _NOTHING
        parts = []
        for span in _entered(request, start, end):
            places, first = span.places, 0
            if span.start < start or end < span.end:
                first, last = np.searchsorted(places, (start, end)).tolist()
                places = places[first:last]
            parts.append(MediaPart(span.item.serial, first, places - np.int32(start)))
        coordinates = None
        if request.coordinates is not None:
            behind = np.arange(request.num_prompt, end, dtype=np.int32) + request.delta
            known = request.coordinates[:, start:end]
            coordinates = np.concatenate([known, np.tile(behind[-(end - start) :], (3, 1))], 1)
        return tuple(parts), coordinates, _two_way(request, start, end)

    def take(self) -> tuple[Ints, tuple[Encode, ...]]:
        """The serials that the plan drops from the shelf, and the items it encodes."""
        forgotten, encode = np.array(self._forgotten, np.int32), tuple(self._encode)
        self._encode, self._forgotten = [], []
        self.num_encoded += len(encode)
        return forgotten, encode

    def holds(self, serial: int) -> bool:
        """Whether an item is encoded, and was not forgotten yet."""
        return serial in self._held

    def lost(self, serial: int) -> None:
        """An item could not be encoded: it is not on the shelf."""
        self._num_held -= self._held.pop(serial, 0)

    def clear(self) -> None:
        """Drop everything from the shelf with the next plan."""
        self._forgotten += self._held
        self._held.clear()
        self._num_held = 0

    def _find(self, item: MediaItem) -> bool:
        """Put the item on the shelf for this plan, or keep it there; False without room."""
        if item.serial not in self._held:
            if not self._has_room(item):
                return False
            arrays = dict(item.features.arrays())
            item.features.encoded()
            self._make_room(item.count)
            self._held[item.serial] = item.count
            self._num_held += item.count
            self._encode.append(Encode(item.serial, item.kind, item.count, arrays))
        self._held.move_to_end(item.serial)
        self._kept.add(item.serial)
        return True

    def _has_room(self, item: MediaItem) -> bool:
        encoded = sum(one.count for one in self._encode)
        if self._encode and encoded + item.count > self._most_encoded:
            return False
        kept = sum(self._held[serial] for serial in self._kept if serial in self._held)
        return not kept or kept + item.count <= self._shelf_rows

    def _make_room(self, count: int) -> None:
        for serial in [s for s in self._held if s not in self._kept]:
            if self._num_held + count <= self._shelf_rows:
                return
            self._num_held -= self._held.pop(serial)
            self._forgotten.append(serial)


def _uncut(span: Span, start: int, end: int) -> int:
    """`end`, or the place before it where a slice must end so as not to cut a run of tokens that
    see each other, since a run is computed in one pass. `start` if the slice would be empty."""
    if span.two_way:
        for first, last in span.runs.tolist():
            if first < end < last:
                return max(int(first), start)
    return end


def _two_way(request: Request, start: int, end: int) -> Ints | None:
    """The runs of tokens of a slice that see each other, as positions; None where there are
    none."""
    runs = [s.runs for s in request.media if s.two_way and s.start < end and start < s.end]
    if not runs:
        return None
    joined = np.concatenate(runs)
    return joined[(joined[:, 0] < end) & (start < joined[:, 1])]


def _entered(request: Request, start: int, end: int) -> Iterable[Span]:
    """The spans of which a slice has tokens, in order."""
    for span in request.media:
        if start <= span.start < end:
            yield span
        elif span.start < end and start < span.end:
            first = int(np.searchsorted(span.places, start))
            if span.places[first] < end:
                yield span
