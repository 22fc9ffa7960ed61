"""Checks the fields of a request for a new batch."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

from quire.openai_api.errors import bad
from quire.openai_api.field import checked_fields, plain_body
from quire.openai_api.fields import CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES
from quire.params.rules import show
from quire.server import files
from quire.server.batches import StoredBatch
from quire.server.files import StoredFile
from quire.server.ids import BATCH, new_id

ENDPOINTS = (CHAT, COMPLETIONS, RESPONSES, EMBEDDINGS)
NEW_BATCH = plain_body(
    [
        ("input_file_id", "text", "A file with purpose batch."),
        ("endpoint", "text", f"One of {', '.join(ENDPOINTS)}."),
        ("completion_window", "text", "A number of m, h or d: 24h."),
    ],
    [
        ("metadata", "an object", "At most 16 texts."),
        ("output_expires_after", "an object", "`anchor`: created_at, and `seconds`."),
    ],
)
_WINDOW = re.compile("([1-9][0-9]{0,5})([mhd])")
_SECONDS = {"m": 60, "h": 3600, "d": 86400}
LONGEST_WINDOW = 365 * 86400
MOST_METADATA, LONGEST_METADATA_NAME, LONGEST_METADATA = 16, 64, 512


def read_new_batch(body: Any) -> Mapping[str, Any]:
    """The checked fields of a new batch."""
    given = checked_fields(NEW_BATCH, body)
    if given["endpoint"] not in ENDPOINTS:
        raise bad(
            f"the endpoint is one of {', '.join(ENDPOINTS)}, not {show(given['endpoint'])}",
            param="endpoint",
        )
    window_seconds(given["completion_window"])
    _check_metadata(given.get("metadata"))
    if (after := given.get("output_expires_after")) is not None:
        _check_after(after)
    return given


def window_seconds(window: str) -> int:
    """How long a batch may take: "24h", "90m", "7d"."""
    found = _WINDOW.fullmatch(window)
    seconds = int(found[1]) * _SECONDS[found[2]] if found else 0
    if not 0 < seconds <= LONGEST_WINDOW:
        raise bad(
            f"completion_window is a number of m, h or d, at most 365d, not {show(window)}",
            param="completion_window",
        )
    return seconds


def _check_metadata(metadata: Any) -> None:
    if metadata is None:
        return
    fits = isinstance(metadata, Mapping) and len(metadata) <= MOST_METADATA
    if not fits or not all(
        len(name) <= LONGEST_METADATA_NAME
        and isinstance(value, str)
        and len(value) <= LONGEST_METADATA
        for name, value in metadata.items()
    ):
        raise bad(
            f"metadata is an object of at most {MOST_METADATA} texts, with names of at most "
            f"{LONGEST_METADATA_NAME} characters and texts of at most {LONGEST_METADATA}",
            param="metadata",
        )


def _check_after(after: Any) -> int:
    if not isinstance(after, Mapping) or set(after) - {"anchor", "seconds"}:
        raise bad("output_expires_after has an anchor and seconds", param="output_expires_after")
    return files.checked_lifetime(after.get("anchor"), after.get("seconds"))


def new_batch(
    given: Mapping[str, Any], *, key_id: str, file: StoredFile, model: str, storage: str
) -> StoredBatch:
    """The batch that the fields ask for."""
    if file.purpose != "batch":
        raise bad(
            f"a batch reads a file with purpose batch, and this one has {file.purpose}",
            param="input_file_id",
        )
    now, after = int(time.time()), given.get("output_expires_after")
    return StoredBatch(
        id=new_id(BATCH),
        key_id=key_id,
        storage=storage,
        endpoint=given["endpoint"],
        input_file_id=file.id,
        input_sha256=file.sha256,
        completion_window=given["completion_window"],
        metadata=given.get("metadata"),
        output_lifetime=None if after is None else _check_after(after),
        model=model,
        created_at=now,
        expires_at=now + window_seconds(given["completion_window"]),
    )
