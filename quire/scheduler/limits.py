"""How much one step may take, and how long one may wait."""

from __future__ import annotations

from dataclasses import dataclass

from quire.config import Speculation


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of a scheduler."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_repeat: int = 1
    max_wait: float = 60.0
    prefix_groups: bool = True
    speculation: Speculation | None = None
