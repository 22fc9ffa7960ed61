"""Batch: one forward pass of a StepPlan as tensors; the argument every layer receives.

Sequences are in the plan's order: prefill slices first, then decode rows with one token each. The
tokens are in the order of their sequences. A Batch has block ids and slots, not the KV itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from quire.backends.two_way import TwoWaySpan
from quire.layers.cross import Heard
from quire.layers.kv_groups import ONE_TABLE, BlockTables
from quire.layers.logit_tokens import logit_tokens_of
from quire.layers.overlay import Overlay
from quire.layers.prefixes import SharedPrefix, prefixes_of
from quire.request import Ints
from quire.step import PrefixGroup, Slice

Longs = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Batch:
    """block_size 4; row 5 computes 3 tokens from position 2 on, rows 0 and 3 decode:

    token_ids     [7 8 9 | 1 | 2]       positions [2 3 4 | 9 | 6]
    query_starts  [0, 3, 4, 5]          context_lens [5, 10, 7], this step's tokens included
    slots         [tables, 5] where each token's KV goes: block * 4 + position % 4
    tables        [tables, 3, 3] the rows' block tables; -1 where a row has no block
    logit_tokens  [2, 3, 4]             the tokens whose logits are needed
    draws         [0, 1, 2]             which of those logits each drawing row reads
    fresh_blocks  blocks that this pass writes first and does not fill: here row 5's, with token 9

    `tables` counts the block tables of a row (kv_groups.py); most models have one. token_ids and
    positions may be longer than slots: the rest is padding, whose results are not used. A sequence
    with context 0 is idle: its slot is -1, and none of its KV is read or written. longest_query and
    longest_context are 3 and 10 here, or 0 where they are not known on the host.
    """

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    query_starts: Tensor
    context_lens: Tensor
    tables: Tensor
    num_prefill: int
    prefixes: tuple[SharedPrefix, ...]
    logit_tokens: Tensor
    draws: Tensor
    fresh_blocks: Tensor
    longest_query: int = 0
    longest_context: int = 0
    overlay: Overlay | None = None
    coordinates: Tensor | None = None  # [3, T], for ropes with three axes
    heard: Heard | None = None
    two_way: tuple[TwoWaySpan, ...] = ()  # their tokens also see later tokens

    @property
    def num_tokens(self) -> int:
        return self.slots.shape[1]


def make_batch(
    prefill: Sequence[Slice],
    decode_rows: Ints,
    decode_positions: Ints,
    groups: Sequence[PrefixGroup] = (),
    *,
    last_tokens: Tensor,
    tables: Tensor,
    block_size: int,
    padded: Callable[[int], int],
    seen: BlockTables = ONE_TABLE,
    zeros: int = -1,
) -> Batch:
    """The pass that computes these slices and decode rows.

    `last_tokens` [rows] and `tables` [tables, rows, width] are on the device. `padded` gives the
    number of tokens to run for a number of real ones. `seen`: what each table is of. The blocks
    behind a window were given back and must not be read, so the tables name the block `zeros` in
    their place.
    """
    device = tables.device
    lengths = np.array([len(s.token_ids) for s in prefill] + [1] * len(decode_rows), np.int64)
    starts = np.array([s.start for s in prefill] + decode_positions.tolist(), np.int64)
    rows = np.array([s.row for s in prefill] + decode_rows.tolist(), np.int64)
    query_starts = np.concatenate([[0], lengths.cumsum()])
    num_tokens = int(query_starts[-1])
    sequence_of = np.repeat(np.arange(len(rows)), lengths)
    positions = np.arange(num_tokens) - np.repeat(query_starts[:-1] - starts, lengths)

    def put(array: Longs) -> Tensor:
        return torch.from_numpy(array).to(device)

    context_lens = starts + lengths
    width = -(-int(context_lens.max()) // block_size)
    own_tables = tables[:, put(rows), :width].long()
    for number, (table, window) in enumerate(zip(own_tables, seen.windows, strict=True)):
        if window is not None:
            first_seen = put(np.maximum(starts - window + 1, 0) // block_size)
            behind = torch.arange(width, device=device) < first_seen[:, None]
            table[behind] = seen.block_in(number, zeros)
    blocks = own_tables[:, put(sequence_of), put(positions // block_size)]
    extra = padded(num_tokens) - num_tokens
    fed = last_tokens[put(rows[len(prefill) :])]
    parts = [torch.from_numpy(s.token_ids).to(device, torch.int64) for s in prefill]
    partly = context_lens % block_size
    fresh = np.flatnonzero((partly > 0) & (partly <= lengths))
    fresh_blocks = own_tables[:, put(fresh), put(context_lens[fresh] // block_size)]
    logit_tokens, draws = logit_tokens_of(prefill, len(decode_rows), query_starts)
    return Batch(
        token_ids=torch.cat([*parts, fed, fed.new_zeros(extra)]),
        positions=put(np.concatenate([positions, np.zeros(extra, np.int64)])),
        slots=blocks * block_size + put(positions % block_size),
        query_starts=put(query_starts),
        context_lens=put(context_lens),
        tables=own_tables,
        num_prefill=len(prefill),
        prefixes=prefixes_of(groups, rows, len(prefill), seen, device),
        logit_tokens=put(logit_tokens),
        draws=put(draws),
        fresh_blocks=(fresh_blocks // put(seen.parts)[:, None]).reshape(-1),
    )
