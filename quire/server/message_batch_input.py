"""Turns the body for a batch of messages into the lines from which every batch is read.

A body of hundreds of megabytes is never in memory as objects: it is written to disk as it arrives
and checked there, and each request is copied unchanged. An error that would prevent matching a
request to its result refuses the whole body; an error inside `params` fails only that request,
later.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Generic, NamedTuple, TypeVar

import msgspec
from starlette.requests import Request

from quire.jobs.input.jsonl import LONGEST_ROW, parse_line
from quire.jobs.input.rows import BadRow
from quire.openai_api.errors import ApiError, bad
from quire.openai_api.field import plain_body
from quire.openai_api.fields import MESSAGES
from quire.params.rules import show
from quire.server.reading import refuse_no_json
from quire.server.receiving import Limits, Writer, write_body
from quire.server.storage import Storage
from quire.server.threads import run_uncancelled

MOST_REQUESTS, MOST_BODY = 100_000, 256 << 20
NEW_MESSAGE_BATCH = plain_body(
    [("requests", "a list", "Each with a `custom_id` and `params`, the body of a message.")]
)
_ID = re.compile("[a-zA-Z0-9_-]{1,64}")
_PIECE = 1 << 20


class _Asked(msgspec.Struct, forbid_unknown_fields=True):
    custom_id: str
    params: msgspec.Raw


Read = TypeVar("Read", bound=_Asked)


class _Body(msgspec.Struct, Generic[Read], forbid_unknown_fields=True):
    requests: list[Read]


class Lines(NamedTuple):
    """Lines that are on disk under `storage`, but not yet in the database."""

    storage: str
    size: int
    sha256: str
    num_requests: int


async def receive_requests(request: Request, storage: Storage, limits: Limits) -> Lines:
    """Store the requests of a body. After a failure nothing is left on disk."""
    refuse_no_json(request)
    bounds = replace(limits, most=min(limits.most, MOST_BODY), what="a body")
    came, kept = storage.new_name(), storage.new_name()
    with storage.receiving(came) as body, storage.receiving(kept) as lines:
        arriving = Writer(body, bounds)
        await write_body(request, arriving, lambda data: (data,))
        writer = Writer(lines, Limits(limits.room, limits.room))
        count = await run_uncancelled(_write_lines, body, arriving.size, writer)
        await run_uncancelled(storage.keep, kept, lines)
    return Lines(kept, writer.size, writer.sha256, count)


def _write_lines(body: int, size: int, writer: Writer) -> int:
    """Write the lines; returns their number."""
    asked = _requests(mmap.mmap(body, size, access=mmap.ACCESS_READ) if size else b"")
    for line in _lines(asked):
        writer.add(line)
        if writer.waiting >= _PIECE:
            writer.write()
    writer.write()
    return len(asked)


def _requests(body: mmap.mmap | bytes) -> Sequence[_Asked]:
    count = 0

    class Counted(_Asked):
        """Counts itself when it is parsed: a list of millions of tiny requests would take a
        gigabyte before its length could be checked."""

        def __post_init__(self) -> None:
            nonlocal count
            count += 1
            if count > MOST_REQUESTS:
                raise _wrong_count("more")

    try:
        asked = msgspec.json.decode(body, type=_Body[Counted]).requests
    except msgspec.ValidationError as error:
        message = "the body has requests, a list of objects with custom_id and params, and no more"
        raise bad(f"{message}: {show(str(error))}", param="requests") from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise bad("the body is not JSON as the standard has it", code="invalid_json") from None
    if not asked:
        raise _wrong_count("none")
    return asked


def _lines(asked: Sequence[_Asked]) -> Iterator[bytes]:
    seen = set[str]()
    for i, one in enumerate(asked):
        if _ID.fullmatch(one.custom_id) is None:
            rule = "has 1 to 64 letters, digits, _ and -"
            raise _wrong(i, f"custom_id {rule}, not {show(one.custom_id)}")
        if one.custom_id in seen:
            raise _wrong(i, f"custom_id {show(one.custom_id)} is that of an earlier request, too")
        seen.add(one.custom_id)
        params = msgspec.json.format(one.params, indent=-1)  # indent -1: on one line
        line = b'{"custom_id":"%s","method":"POST","url":"%s","body":%s}\n' % (
            *(one.custom_id.encode("ascii"), MESSAGES.encode("ascii")),
            params,
        )
        if len(line) > LONGEST_ROW:
            raise _wrong(i, f"params has at most {LONGEST_ROW:,} bytes")
        if isinstance(read := parse_line(line), BadRow):
            raise _wrong(i, f"params cannot be read: {read.message}")
        if not isinstance(read["body"], dict):
            raise _wrong(i, f"params is an object, not {show(read['body'])}")
        yield line


def _wrong_count(found: str) -> ApiError:
    return bad(f"requests has 1 to {MOST_REQUESTS:,} of them, not {found}", param="requests")


def _wrong(i: int, message: str) -> ApiError:
    return bad(f"requests[{i}].{message}", param="requests")
