"""RankSampler: draws tokens on a rank, where the code of requests does not run.

Every rank draws from the same logits with the same noise, so ranks need not exchange tokens. A row
with logits processors is always held while they run in the engine's process: if ranks waited for
them by their own clocks, one rank might compute another pass than the others.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from quire.config import EngineConfig
from quire.errors import ProcessorFailed
from quire.executor.samplers import plain_sampler
from quire.request import Ints
from quire.sampling.holding import Holding, Longs, Merged, Processed
from quire.step import Floats, Masks
from quire.steps.handles import Handles


class RankSampler(Holding):
    """Rows with processors draw from processed logits that come with a later plan."""

    def __init__(
        self, config: EngineConfig, vocab_size: int, device: torch.device, handles: Handles
    ) -> None:
        sampler = plain_sampler(config, vocab_size, device, handles)
        super().__init__(sampler, max_rows=config.max_num_seqs, device=device)
        self._asked: dict[int, Floats] = {}
        # From the running plan, for the rows that it releases.
        self.processed: dict[int, Floats] = {}
        self.failures: dict[int, str] = {}

    def take_asked(self) -> dict[int, Floats]:
        """The logits of rows that were held since the last call."""
        asked, self._asked = self._asked, {}
        return asked

    def _begin(self, logits: Tensor, lines: Longs, rows: Ints) -> None:
        # Copied to the host on the stream that computes them: another stream might read too early.
        at_home = logits[torch.from_numpy(lines).to(self._device)].float().cpu().numpy()
        self._asked |= zip(rows.tolist(), at_home, strict=True)

    def _settle(self, made: Merged, lines: Longs, rows: Ints, masks: Masks | None) -> None:
        made.held |= zip(lines.tolist(), rows.tolist(), strict=True)

    def _processed(self, rows: list[int]) -> Processed:
        failed = {
            i: ProcessorFailed(self.failures[row])
            for i, row in enumerate(rows)
            if row in self.failures
        }
        made = [i for i in range(len(rows)) if i not in failed]
        if not made:
            return [], None, failed
        lines = np.stack([self.processed[rows[i]] for i in made])
        return made, torch.from_numpy(lines).to(self._device), failed

    def _drew(self, rows: Ints, tokens: Tensor) -> None:
        """Nothing: processors learn tokens in the process that runs them."""
