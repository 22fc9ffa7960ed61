"""The states of a batch: which are ends, and which of its times each one sets.

validating -> in_progress -> finalizing -> completed | expired
validating -> failed; in_progress or finalizing too, where its files are gone
any that is no end -> cancelling -> cancelled
"""

from __future__ import annotations

from typing import Literal

Status = Literal[
    "validating",
    "in_progress",
    "finalizing",
    "completed",
    "failed",
    "expired",
    "cancelling",
    "cancelled",
]
Ending = Literal["completed", "expired", "cancelled"]

LIVE: tuple[Status, ...] = ("validating", "in_progress", "finalizing", "cancelling")
ENDS: tuple[Status, ...] = ("completed", "failed", "expired", "cancelled")
# The column with the time at which a state was entered; validating has created_at.
TIMES: dict[Status, str] = {
    "in_progress": "in_progress_at",
    "finalizing": "finalizing_at",
    "completed": "completed_at",
    "failed": "failed_at",
    "expired": "expired_at",
    "cancelling": "cancelling_at",
    "cancelled": "cancelled_at",
}
