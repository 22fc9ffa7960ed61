"""RankSampler: draws on a rank, where the code of requests is not.

Every rank draws from the same logits with the same noise, so none has to be told what another drew.
A row with logits processors is always held, for as long as they take: a rank that waited for them,
or did not, by its own clock would go another way than the others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from quire.config import EngineConfig
from quire.errors import ProcessorFailed
from quire.executor.samplers import plain_sampler
from quire.request import Ints
from quire.sampling.holding import Merged, Patience, raw_lines
from quire.sampling.rows import Flags
from quire.sampling.sampled import DrawLines, Sampled
from quire.step import Floats, Masks, RowStart
from quire.steps.handles import Handles


@dataclass(frozen=True, slots=True)
class _Held:
    raw: Tensor | None  # as the model gave them, where the row's logprobs are of those
    position: int


class RankSampler:
    """Draws for all rows; those with processors from logits that come back with a plan."""

    def __init__(
        self, config: EngineConfig, vocab_size: int, device: torch.device, handles: Handles
    ) -> None:
        self._sampler = plain_sampler(config, vocab_size, device, handles)
        self._device = device
        self._has: Flags = np.zeros(config.max_num_seqs, np.bool_)
        self._held: dict[int, _Held] = {}
        self._asked: dict[int, Floats] = {}
        # What the plan that is run brought along for rows that it releases.
        self.processed: dict[int, Floats] = {}
        self.failures: dict[int, str] = {}

    def take_asked(self) -> dict[int, Floats]:
        """The logits of rows that were held since this was last asked."""
        asked, self._asked = self._asked, {}
        return asked

    def draw_by(self, kernels: DrawLines) -> None:
        self._sampler.draw_by(kernels)

    def start(self, start: RowStart) -> None:
        self.end(np.asarray([start.row], np.int32))
        self._sampler.start(start)
        self._has[start.row] = start.has_processors

    def end(self, rows: Ints) -> None:
        self._sampler.end(rows)
        for row in rows[self._has[rows]].tolist():
            self._held.pop(row, None)
        self._has[rows] = False

    def sample(
        self,
        logits: Tensor,
        rows: Ints,
        positions: Ints,
        masks: Masks | None,
        *,
        patience: Patience | None = None,
    ) -> Sampled:
        theirs = np.flatnonzero(self._has[rows])
        if not len(theirs):
            return self._sampler.sample(logits, rows, positions, masks)
        made = Merged.of(len(rows))
        raw = logits[torch.from_numpy(theirs).to(self._device)]
        # Brought home here, on the stream that makes them: read from another they may not be there.
        at_home = raw.float().cpu().numpy()
        for i, line in enumerate(theirs.tolist()):
            row = int(rows[line])
            self._asked[row] = at_home[i]
            kept = raw[i] if self._sampler.keeps_raw(row) else None
            self._held[row] = _Held(kept, int(positions[line]))
            made.held[line] = row
        others = np.flatnonzero(~self._has[rows])
        if len(others):
            at = torch.from_numpy(others).to(self._device)
            sampled = self._sampler.sample(logits[at], rows[others], positions[others], masks)
            made.add(others, sampled)
        return made.sampled()

    def sample_held(self, rows: Ints, masks: Masks | None) -> Sampled:
        made = Merged.of(len(rows))
        held = [self._held.pop(row) for row in rows.tolist()]
        lines = []
        for line, row in enumerate(rows.tolist()):
            if row in self.failures:
                made.fail(line, ProcessorFailed(self.failures[row]))
            else:
                lines.append(line)
        if lines:
            processed = [self._on_device(self.processed[int(rows[line])]) for line in lines]
            raw = [held[line].raw for line in lines]
            drawn = self._sampler.sample(
                torch.stack(processed),
                rows[lines],
                np.array([held[line].position for line in lines], np.int32),
                masks,
                raw=raw_lines(processed, raw),
            )
            made.add(np.array(lines), drawn)
        return made.sampled()

    def position_held(self, row: int) -> int:
        """Where the token will stand that the row draws from its held logits."""
        return self._held[row].position

    def _on_device(self, logits: Floats) -> Tensor:
        return torch.from_numpy(logits).to(self._device)
