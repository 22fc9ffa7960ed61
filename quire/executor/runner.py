"""Runner: StepPlan -> Batch -> model -> sampler -> StepResult.

Each pass: the changes of the plan, the KV of its tokens, logits for those who draw, a token
each. With `repeat` the decode rows go on from the tokens they just drew. The runner knows
neither what a row wants from sampling nor why a plan is as it is.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from quire.batch import Batch, make_batch
from quire.executor.rows import DeviceRows
from quire.models.decoder import Decoder
from quire.request import Ints
from quire.sampling.sampler import Sampled
from quire.step import Masks, RowStart, StepPlan, StepResult, TokenLogprobs, no_ints

# Logits of prompt positions held at once.
SCORED_BYTES = 64 << 20


class Samples(Protocol):
    """What the runner asks of a sampler."""

    def start(self, start: RowStart) -> None: ...

    def end(self, rows: Ints) -> None: ...

    def sample(
        self, logits: Tensor, rows: Ints, positions: Ints, masks: Masks | None
    ) -> Sampled: ...

    def score(self, logits: Tensor, targets: Ints, row: int) -> list[TokenLogprobs]: ...


class Runner:
    """Runs plans one after the other on one model and one KV cache."""

    def __init__(
        self, model: Decoder, cache: Tensor, rows: DeviceRows, sampler: Samples, block_size: int
    ) -> None:
        self.model, self.cache, self.rows, self.sampler = model, cache, rows, sampler
        self.block_size = block_size

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> StepResult:
        self._change(plan)
        sampled_rows = plan.sampled_rows()
        num_drawn = len(sampled_rows) - len(plan.decode)
        made = _Made(len(sampled_rows), plan.repeat)
        # Entries of the result that draw in this pass: everybody in the first, then whoever
        # of the decode rows still writes.
        entries = np.arange(num_drawn, len(sampled_rows))
        for k in range(plan.repeat):
            live = self.rows.is_live(sampled_rows[entries]).cpu().numpy()
            entries = entries[live]
            prefill = plan.prefill if k == 0 else ()
            drawing = np.concatenate([np.arange(num_drawn if k == 0 else 0), entries])
            if not len(entries) and not prefill:
                break
            positions = plan.decode.positions[entries - num_drawn] + np.int32(k)
            batch = make_batch(
                prefill,
                sampled_rows[entries],
                positions,
                plan.groups,
                last_tokens=self.rows.last_tokens,
                tables=self.rows.tables,
                block_size=self.block_size,
                padded=self.model.kernels.padded,
            )
            hidden = self._forward(batch)
            if k == 0:
                made.scored = self._score(plan, batch, hidden)
            if len(drawing):
                ends = [s.start + len(s.token_ids) for s in prefill for _ in s.sample_into]
                at = np.concatenate([np.asarray(ends, np.int32), positions + np.int32(1)])
                self._draw(batch, hidden, sampled_rows[drawing], at, plan.masks, made, drawing)
        return made.result()

    @torch.inference_mode()
    def end_rows(self, rows: Ints) -> None:
        """These rows are free for other sequences."""
        self.rows.end(rows)
        self.sampler.end(rows)

    def _change(self, plan: StepPlan) -> None:
        """Everything a plan says before its pass, in the order of its contract."""
        if len(plan.ends):
            self.end_rows(plan.ends)
        for start in plan.starts:
            self.rows.start(start)
            self.sampler.start(start)
        self.rows.assign(plan.assigned)
        if plan.copies:
            self.model.kernels.copy_blocks(self.cache, plan.copies)

    def _forward(self, batch: Batch) -> Tensor:
        if len(batch.fresh_blocks):
            # Slots of a block that are not written yet are read with weight zero, and zero
            # times what a former holder may have left there (NaN) is not zero.
            self.model.kernels.clear_blocks(self.cache, batch.fresh_blocks)
        return self.model(batch, self.cache)

    def _logits(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        """Logits of some tokens of the pass. [len(tokens), V]"""
        count = tokens.shape[0]
        extra = self.model.kernels.padded(count) - count
        chosen = hidden.index_select(0, torch.cat([tokens, tokens.new_zeros(extra)]))
        return self.model.logits(chosen)[:count]

    def _draw(
        self,
        batch: Batch,
        hidden: Tensor,
        rows: Ints,
        positions: Ints,
        masks: Masks | None,
        made: _Made,
        entries: np.ndarray[tuple[int], np.dtype[np.int64]],
    ) -> None:
        """One token for each row, from the logits it reads."""
        logits = self._logits(hidden, batch.logit_tokens)
        if len(batch.draws) != logits.shape[0]:
            logits = logits.index_select(0, batch.draws)
        sampled = self.sampler.sample(logits, rows, positions, masks)
        failed = torch.zeros(len(rows), dtype=torch.bool, device=hidden.device)
        failed[list(sampled.failed)] = True
        self.rows.accept(rows, sampled.tokens, failed)
        made.add(entries, sampled)

    def _score(
        self, plan: StepPlan, batch: Batch, hidden: Tensor
    ) -> dict[int, list[TokenLogprobs]]:
        """Logprobs of the targets of each slice that has some, in bounded pieces."""
        scored: dict[int, list[TokenLogprobs]] = {}
        row_bytes = self.model.head.out_features * hidden.dtype.itemsize
        step = max(1, SCORED_BYTES // row_bytes)
        for i, piece in enumerate(plan.prefill):
            targets = no_ints() if piece.targets is None else piece.targets
            first = int(batch.query_starts[i])
            for at in range(0, len(targets), step):
                part = targets[at : at + step]
                tokens = torch.arange(first + at, first + at + len(part), device=hidden.device)
                logits = self._logits(hidden, tokens)
                scored.setdefault(i, []).extend(self.sampler.score(logits, part, piece.row))
        return scored


class _Made:
    """The result while it grows."""

    def __init__(self, num_rows: int, repeat: int) -> None:
        self.tokens = np.full((num_rows, repeat), -1, np.int32)
        self.counts = np.zeros(num_rows, np.int32)
        self.logprobs: dict[int, list[TokenLogprobs]] = {}
        self.scored: dict[int, list[TokenLogprobs]] = {}
        self.failed: list[int] = []

    def add(self, entries: np.ndarray[tuple[int], np.dtype[np.int64]], sampled: Sampled) -> None:
        tokens = sampled.tokens.cpu().numpy().astype(np.int32)
        self.tokens[entries, self.counts[entries]] = tokens
        self.counts[entries] += 1
        for line, logprobs in sampled.logprobs.items():
            self.logprobs.setdefault(int(entries[line]), []).append(logprobs)
        for line in sampled.failed:
            self.counts[entries[line]] -= 1
            self.failed.append(int(entries[line]))

    def result(self) -> StepResult:
        return StepResult(
            self.tokens, self.counts, self.logprobs, self.scored, tuple(sorted(self.failed))
        )
