"""Ids that the server makes: random, of one form, and never part of a path.

An id from a client is only looked up in the database, and only if it has this form.
"""

from __future__ import annotations

import re
import secrets

FILE, BATCH, UPLOAD, PART = "file-", "batch_", "upload_", "part_"
MESSAGE_BATCH = "msgbatch_"
_REST = re.compile("[0-9a-f]{32}")


def new_id(kind: str) -> str:
    return kind + secrets.token_hex(16)


def is_id(text: object, *kinds: str) -> bool:
    return isinstance(text, str) and any(
        text.startswith(kind) and _REST.fullmatch(text[len(kind) :]) is not None for kind in kinds
    )
