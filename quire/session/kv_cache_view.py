"""What an LLM says of its KV cache."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KvCacheView:
    """The KV cache of an LLM: how large it is, and how much of it was ever in use at once."""

    num_blocks: int
    block_size: int
    peak_blocks: int
