"""How large, how slow and how deep a request may be, before anything of it is parsed."""

from __future__ import annotations

MOST_BODY = 8 << 20  # bytes of JSON
MOST_LATE = 8 << 20  # bytes of a body that are still taken once it was refused
BODY_SECONDS = 60.0  # until all of it is there
DEEPEST = 64  # levels of lists and objects
MOST_HEADERS, MOST_HEADER_BYTES = 100, 32 << 10
HEADER_SECONDS = 10.0  # until the headers are there
MOST_UNSENT = 1 << 20  # bytes that a reader may leave unread
PING_SECONDS = 15.0  # a stream that says nothing for so long shows that it lives
SLOW_READER_SECONDS = 30.0  # with that many unread, it is cut

# Routes that read their bodies themselves, with limits of their own.
UPLOADS = ("/v1/files", "/v1/uploads")


def reads_itself(method: str, path: str) -> bool:
    """Whether the body of a request is an upload, and none of ours to limit."""
    return method == "POST" and (
        path == "/v1/files" or (path.startswith("/v1/uploads/") and path.endswith("/parts"))
    )
