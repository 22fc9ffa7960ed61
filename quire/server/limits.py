"""How large, how slow and how deep a request may be, before anything of it is parsed."""

from __future__ import annotations

MOST_BODY = 8 << 20  # bytes of JSON
# Of a request that was refused while it was still being sent: many read only after that.
MOST_LATE, LATE_SECONDS = 32 << 20, 30.0
BODY_SECONDS = 60.0  # until all of it is there
DEEPEST, MOST_INNER = 64, 1 << 16  # levels of lists and objects, and how many in all
MOST_HEADERS, MOST_HEADER_BYTES = 100, 32 << 10
MOST_EMPTY_BYTES = 64 << 10  # between two pieces of a body, or behind it: what says nothing
HEADER_SECONDS = 10.0  # until the headers are there
LOOK_SECONDS = 0.02  # until it is first looked whether a client that ended its sending is gone
MOST_UNSENT = 1 << 20  # bytes that a reader may leave unread
PING_SECONDS = 15.0  # a stream that says nothing for so long shows that it lives
SLOW_READER_SECONDS = 30.0  # with that many unread, it is cut
AT_ONCE = 8  # rows of batches that are looked at before others have their turn
