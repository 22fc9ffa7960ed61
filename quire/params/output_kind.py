"""Which outputs of a request a caller gets while it runs."""

from __future__ import annotations

from enum import Enum


class RequestOutputKind(Enum):
    CUMULATIVE = 0  # every output has all the text so far
    DELTA = 1  # every output has only what is new
    FINAL_ONLY = 2  # one output, at the end
