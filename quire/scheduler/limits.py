"""How much one step may take, and how long one may wait."""

from __future__ import annotations

from dataclasses import dataclass

from quire.config import EngineConfig, Speculation
from quire.scheduler.pacing import Pacing


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of a scheduler."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_repeat: int = 1
    max_wait: float = 60.0
    prefix_groups: bool = True
    speculation: Speculation | None = None
    pacing: Pacing = Pacing()
    shelf_rows: int = 0  # of encoded media that are kept; a single item may be larger
    max_adapters: int = 1  # LoRA adapters that run at once
    overlap: bool = False  # a plan may be made while the result of another is awaited

    @staticmethod
    def in_engine(config: EngineConfig, shelf_rows: int = 0) -> Limits:
        return Limits(
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_repeat=config.max_repeat,
            max_wait=config.max_wait,
            prefix_groups=config.prefix_groups,
            speculation=config.speculation,
            pacing=Pacing.in_engine(config),
            shelf_rows=shelf_rows,
            max_adapters=1 if config.adapters is None else config.adapters.max_loras,
            overlap=config.depth > 1,
        )
