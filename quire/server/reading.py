"""Reads the bodies of requests: bytes within limits, then strict JSON of limited depth."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request

from quire.jobs.input.strict_json import nests_deeper
from quire.openai_api.errors import ApiError, bad
from quire.server.limits import BODY_SECONDS, DEEPEST, MOST_BODY, MOST_INNER

JSON_REFUSALS = frozenset({400, 408, 413, 415})  # of read_json
_decode = msgspec.json.Decoder(strict=True).decode
# An unclosed string matches too, else its end would be searched again from every quote.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)


async def read_body_bytes(request: Request) -> bytes:
    """The body, at most MOST_BODY bytes, whatever its content-length says."""
    claimed = request.headers.get("content-length")
    if claimed is not None and claimed.isdigit() and int(claimed) > MOST_BODY:
        raise _too_large()
    parts, size = [], 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                size += len(part)
                if size > MOST_BODY:
                    raise _too_large()
                parts.append(part)
    except TimeoutError:
        raise ApiError(
            408, f"the body was not there after {BODY_SECONDS:g} s", code="request_timeout"
        ) from None
    except ClientDisconnect:
        raise bad("the connection closed before the body was there") from None
    return b"".join(parts)


def _too_large() -> ApiError:
    return ApiError(413, f"a body has at most {MOST_BODY:,} bytes", code="body_too_large")


async def read_json(request: Request) -> Any:
    refuse_no_json(request)
    return parse_json(await read_body_bytes(request))


def refuse_no_json(request: Request) -> None:
    """415 for a body that is not JSON by its content-type, or is compressed."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in ("application/json", ""):
        raise ApiError(
            415,
            "the body is application/json; say so in Content-Type",
            code="unsupported_media_type",
        )
    refuse_encoded(request)


def refuse_encoded(request: Request) -> None:
    """Refuse a compressed body: a small one may unpack to gigabytes."""
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise ApiError(
            415, "the body is sent as it is, without encoding", code="unsupported_media_type"
        )


def parse_json(body: bytes) -> Any:
    brackets = body.count(b"{") + body.count(b"[")
    if brackets > MOST_INNER:  # without those in strings, which may have any number
        bare = _STRING.sub(b"", body)
        if bare.count(b"{") + bare.count(b"[") > MOST_INNER:
            raise bad(f"the body has more than {MOST_INNER:,} lists and objects")
    try:
        value = _decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise bad("the body is not JSON as the standard has it", code="invalid_json") from None
    if brackets > DEEPEST and nests_deeper(value, DEEPEST):
        raise bad(f"the body nests more than {DEEPEST} levels deep", code="invalid_json")
    return value
