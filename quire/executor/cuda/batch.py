"""A pass over the prompts of a StepPlan as a Batch, made without waiting for the device.

All that the host knows is sent in the plan's upload; the block tables are on the device.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from quire.executor.cuda.device_rows import DeviceColumns, aligned_lines
from quire.executor.cuda.upload import Upload
from quire.layers.batch import Batch, Longs
from quire.request import Ints
from quire.step import Slice, StepPlan, no_ints


class PromptPass:
    """The constructor adds arrays to the upload before it is sent; `batch` is called after the
    plan's changes were applied.
    """

    def __init__(
        self,
        prefill: Sequence[Slice],
        upload: Upload,
        block_size: int,
        *,
        num_tokens: int = 0,
        num_sequences: int = 0,
        resting: int = 0,
    ) -> None:
        """The pass is padded to `num_tokens` and `num_sequences`. Padding belongs to the idle row,
        and its KV is neither stored nor read."""
        self.prefill, self._upload, self._block_size = prefill, upload, block_size
        lengths = np.array([len(s.token_ids) for s in prefill], int)
        starts = np.array([s.start for s in prefill], int)
        rows = np.array([s.row for s in prefill], int)
        self.query_starts: Longs = np.concatenate([[0], lengths.cumsum()])
        contexts = starts + lengths
        self.longest_query = int(lengths.max(initial=0))
        self.longest_context = int(contexts.max(initial=0))
        # The position of each drawn token, in the order of plan.sampled_rows().
        drawn = [i for i, s in enumerate(prefill) for _ in s.sample_into]
        self.drawn_at: Ints = contexts[drawn].astype(np.int32)
        used = int(self.query_starts[-1])
        offsets = np.repeat(self.query_starts[:-1] - starts, lengths)
        more = max(0, num_tokens - used)
        more_rows = max(0, num_sequences - len(rows))
        self._num_sequences = len(rows) + more_rows
        ids = [s.token_ids for s in prefill]
        upload.add("prompt ids", np.concatenate([no_ints(), *ids, np.zeros(more, np.int32)]))
        upload.add("rows", padded(rows, more_rows, resting))
        upload.add("token rows", padded(np.repeat(rows, lengths), more, resting))
        upload.add("positions", padded(np.arange(used) - offsets, more, 0))
        upload.add("query starts", padded(self.query_starts, more_rows, used))
        upload.add("contexts", padded(contexts, more_rows, 0))
        upload.add("drawn at", self.drawn_at)
        upload.add("sampled rows", [row for s in prefill for row in s.sample_into])
        # Several samples of one prompt read the same logits.
        drawing, draws = np.unique(np.array(drawn, int), return_inverse=True)
        self.shares_logits = len(drawing) < len(drawn)
        self.logit_tokens: Longs = self.query_starts[1:][drawing] - 1
        upload.add("logit tokens", self.logit_tokens)
        upload.add("draws", draws)

    def batch(self, columns: DeviceColumns) -> Batch:
        """Called after the plan's changes."""
        take, size = self._upload.take, self._block_size
        rows, positions = take("rows"), take("positions")
        blocks = columns.tables[:, take("token rows"), positions // size]
        slots = aligned_lines(len(blocks), len(positions), torch.int64, blocks.device)
        torch.add(blocks * size, positions % size, out=slots)
        # A multiple of 4, so that every table begins at a multiple of 16 bytes.
        width = min(-(-self.longest_context // size) + 3 & ~3, columns.tables.shape[2])
        return Batch(
            token_ids=take("prompt ids"),
            positions=positions,
            slots=slots,
            query_starts=take("query starts"),
            context_lens=take("contexts"),
            tables=columns.tables[:, :, :width].index_select(1, rows),
            num_prefill=self._num_sequences,
            prefixes=(),
            logit_tokens=take("logit tokens"),
            draws=take("draws"),
            fresh_blocks=rows[:0],
            longest_query=self.longest_query,
            longest_context=self.longest_context,
        )

    def drawn_logits(self, batch: Batch, logits: Tensor) -> Tensor:
        """A line of logits for every drawing row."""
        return logits.index_select(0, batch.draws) if self.shares_logits else logits


def padded(numbers: Longs, count: int, value: int) -> Longs:
    """[3 4], 2, 9 -> [3 4 9 9]"""
    return np.concatenate([numbers, np.full(count, value, np.int64)]) if count else numbers


def places_of(plan: StepPlan, first: int = 0) -> list[Ints]:
    """The members of each group as indices: decode row i of the plan has index first + i."""
    if not plan.groups:
        return []
    place = np.full(int(plan.decode.rows.max(initial=0)) + 1, -1, np.int32)
    place[plan.decode.rows] = np.arange(len(plan.decode), dtype=np.int32) + np.int32(first)
    return [place[group.rows] for group in plan.groups]
