"""One eager pass of a StepPlan as a Batch, made without waiting for the device.

Everything the host knows crosses in the plan's parcel; what only the device knows (last tokens,
which rows stopped by themselves) is read there. A decode row that rests keeps its place with a
context of 0 and no slot, so the host need not know.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from quire.executor.cuda.device_rows import NOWHERE, Column, DeviceColumns, aligned_lines
from quire.executor.cuda.upload import Upload
from quire.layers.batch import Batch, Longs, SharedPrefix
from quire.request import Ints
from quire.step import StepPlan, no_ints


class EagerPass:
    """The first pass of a plan: its slices, then its decode rows.

    Made in two moments: before the parcel is sent, and after the plan's changes were applied.
    """

    def __init__(
        self,
        plan: StepPlan,
        upload: Upload,
        block_size: int,
        *,
        num_tokens: int = 0,
        num_sequences: int = 0,
        resting: int = 0,
    ) -> None:
        """A pass without decode rows may be rounded up to `num_tokens` and `num_sequences`;
        what is added belongs to the row that rests, and is neither stored nor read."""
        self._upload, self._block_size = upload, block_size
        self._num_prefill, self._num_decode = len(plan.prefill), len(plan.decode)
        lengths = np.array([len(s.token_ids) for s in plan.prefill] + [1] * self._num_decode, int)
        starts = np.array([s.start for s in plan.prefill] + plan.decode.positions.tolist(), int)
        rows = np.array([s.row for s in plan.prefill] + plan.decode.rows.tolist(), int)
        self.query_starts: Longs = np.concatenate([[0], lengths.cumsum()])
        contexts = starts + lengths
        self.longest_query = int(lengths.max(initial=0))
        self.longest_context = int(contexts.max(initial=0))
        # Where each drawn token will stand, in the order of plan.sampled_rows().
        drawn = [i for i, s in enumerate(plan.prefill) for _ in s.sample_into]
        drawn += range(self._num_prefill, len(rows))
        self.drawn_at: Ints = contexts[drawn].astype(np.int32)
        used = int(self.query_starts[-1])
        offsets = np.repeat(self.query_starts[:-1] - starts, lengths)
        more = max(0, num_tokens - used)
        more_rows = max(0, num_sequences - len(rows))
        self._num_prefill += more_rows
        ids = [s.token_ids for s in plan.prefill]
        upload.add("prompt ids", np.concatenate([no_ints(), *ids, np.zeros(more, np.int32)]))
        upload.add("rows", padded(rows, more_rows, resting))
        upload.add("token rows", padded(np.repeat(rows, lengths), more, resting))
        upload.add("positions", padded(np.arange(used) - offsets, more, 0))
        upload.add("query starts", padded(self.query_starts, more_rows, used))
        upload.add("contexts", padded(contexts, more_rows, 0))
        upload.add("drawn at", self.drawn_at)
        upload.add("sampled rows", plan.sampled_rows())
        # Several samples of one prompt read the same logits.
        drawing, draws = np.unique(np.array(drawn, int), return_inverse=True)
        self.shares_logits = len(drawing) < len(drawn)
        upload.add("logit tokens", self.query_starts[1:][drawing] - 1)
        upload.add("draws", draws)
        members = places_of(plan, first=len(plan.prefill))
        self._prefixes = tuple(zip(plan.groups, members, strict=True))

    def batch(self, columns: DeviceColumns) -> Batch:
        """After the plan's changes."""
        take, size, num_decode = self._upload.take, self._block_size, self._num_decode
        rows, positions = take("rows"), take("positions")
        contexts = take("contexts")
        blocks = columns.tables[:, take("token rows"), positions // size]
        slots = aligned_lines(len(blocks), len(positions), torch.int64, blocks.device)
        torch.add(blocks * size, positions % size, out=slots)
        token_ids = take("prompt ids")
        if num_decode:
            decoding = rows[-num_decode:]
            live = columns.live(decoding)
            fed = columns.ints[Column.LAST_TOKEN].index_select(0, decoding)
            token_ids = torch.cat([token_ids, fed])
            contexts[-num_decode:] *= live
            slots[:, -num_decode:] = torch.where(live, slots[:, -num_decode:], NOWHERE)
        # A multiple of four: every table then begins at a multiple of 16 bytes.
        width = min(-(-self.longest_context // size) + 3 & ~3, columns.tables.shape[2])
        prefixes = tuple(
            # Left on the host: a work list is made of them, not a tensor operation.
            SharedPrefix(
                torch.from_numpy(group.blocks).view(columns.num_full, -1), torch.from_numpy(places)
            )
            for group, places in self._prefixes
        )
        return Batch(
            token_ids=token_ids,
            positions=positions,
            slots=slots,
            query_starts=take("query starts"),
            context_lens=contexts,
            tables=columns.tables[:, :, :width].index_select(1, rows),
            num_prefill=self._num_prefill,
            prefixes=prefixes,
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
    """The members of each group as places: decode row i of the plan is at first + i."""
    if not plan.groups:
        return []
    place = np.full(int(plan.decode.rows.max(initial=0)) + 1, -1, np.int32)
    place[plan.decode.rows] = np.arange(len(plan.decode), dtype=np.int32) + np.int32(first)
    return [place[group.rows] for group in plan.groups]
