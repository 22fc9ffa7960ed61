"""Limits for requests, in size, time and depth, which are checked before anything is parsed."""

from __future__ import annotations

MOST_BODY = 8 << 20  # bytes of JSON
# For a request refused while its body is still being sent: many clients read only after that.
MOST_LATE, LATE_SECONDS = 32 << 20, 30.0
BODY_SECONDS = 60.0  # until the whole body is there
DEEPEST, MOST_INNER = 64, 1 << 16  # levels of lists and objects, and the number of all
MOST_HEADERS, MOST_HEADER_BYTES = 100, 32 << 10
MOST_EMPTY_BYTES = 64 << 10  # bytes without content, between two chunks of a body or after it
HEADER_SECONDS = 10.0  # until the headers are there
LOOK_SECONDS = 0.02  # until the first check of whether a client that ended its sending has left
MOST_UNSENT = 1 << 20  # bytes that a client may leave unread
PING_SECONDS = 15.0  # without an event, after which a stream sends a comment
SLOW_READER_SECONDS = 30.0  # with MOST_UNSENT unread, after which a client is disconnected
AT_ONCE = 8  # rows of batches that are handled before other tasks get their turn
