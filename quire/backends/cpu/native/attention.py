"""Paged attention in C: blocks are read in place, and nothing is gathered.

Keys of a block are stored as [head_dim, slot] instead of [slot, head_dim]. Only this module needs
to know, as all other code copies whole blocks. Slots that were never written are not read, so no
block has to be cleared first.
"""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from quire.backends.cpu.native.header import struct
from quire.backends.cpu.native.library import TYPES
from quire.backends.generic import normed_heads
from quire.backends.ops import AttentionInputs, HeadNorms, HeadShape

Longs = npt.NDArray[np.int64]
TILE = 64  # keys, as in attention.c; shorter shared prefixes are ignored
LARGEST_HEAD = 512  # QUIRE_MAX_HEAD

_Heads, _Attention = struct("quire_heads"), struct("quire_attention")
_ITEM_WORDS = 6


class Room:
    """Memory for the threads, used again by every pass."""

    def __init__(self) -> None:
        self.memory = torch.empty(0, dtype=torch.uint8)

    def at_least(self, size: int) -> Tensor:
        if self.memory.shape[0] < size:
            self.memory = torch.empty(size, dtype=torch.uint8)
        return self.memory


class NativeAttention:
    """One pass: its tables and its list of work are made once, for all layers."""

    def __init__(
        self,
        library: ctypes.CDLL,
        shape: HeadShape,
        room: Room,
        inputs: AttentionInputs,
        window: int | None,
    ) -> None:
        self.library, self.shape, self.inputs = library, shape, inputs
        self.num_tokens = inputs.slots.shape[0]
        lengths = inputs.context_lens.numpy()
        groups, num_blocks = shared_blocks(inputs, lengths, shape.block_size, window)
        order = np.empty(len(lengths), np.int64)
        tables = inputs.tables.contiguous()
        self.work = _Attention(
            type=TYPES[shape.dtype],
            num_heads=shape.num_heads,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            block_size=shape.block_size,
            window=window or 0,
            scale=shape.scale,
            num_sequences=len(lengths),
            num_prefill=inputs.num_prefill,
            table_width=tables.shape[1],
            query_starts=inputs.query_starts.data_ptr(),
            context_lens=inputs.context_lens.data_ptr(),
            tables=tables.data_ptr(),
            groups=groups.ctypes.data,
            group_blocks=num_blocks.ctypes.data,
            num_groups=len(num_blocks),
            order=order.ctypes.data,
        )
        scratch = room.at_least(library.quire_attention_scratch(self.work))
        items = np.empty(library.quire_attention_room(self.work) * _ITEM_WORDS, np.int64)
        self.work.scratch, self.work.items = scratch.data_ptr(), items.ctypes.data
        library.quire_plan_attention(self.work)
        # The structure points into these, so they must live as long.
        self.kept = (groups, num_blocks, order, tables, items, scratch)
        self.heads = _Heads(
            type=self.work.type,
            num_stored=self.num_tokens,
            num_heads=shape.num_heads,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            block_size=shape.block_size,
            slots=inputs.slots.data_ptr(),
        )

    def rope_and_store(
        self,
        qk: Tensor,
        v: Tensor,
        cos: Tensor,
        sin: Tensor,
        keys: Tensor,
        values: Tensor,
        norms: HeadNorms | None = None,
    ) -> Tensor:
        if norms is not None and norms.q.dtype != qk.dtype:  # C has one type for both
            qk, norms = normed_heads(qk, norms, self.shape.num_heads), None
        q = qk.new_empty(qk.shape[0], self.shape.num_heads, self.shape.head_dim)
        heads = self.heads
        heads.num_tokens, heads.cache_type = qk.shape[0], TYPES[keys.dtype]
        heads.qk, heads.qk_stride = qk.data_ptr(), qk.stride(0)
        heads.v, heads.v_stride = v.data_ptr(), v.stride(0)
        heads.cos, heads.sin, heads.q = cos.data_ptr(), sin.data_ptr(), q.data_ptr()
        heads.keys, heads.values = keys.data_ptr(), values.data_ptr()
        heads.q_norm = heads.k_norm = None
        if norms is not None:
            heads.q_norm, heads.k_norm = norms.q.data_ptr(), norms.k.data_ptr()
            heads.eps = norms.eps
        self.library.quire_turn_and_store(heads)
        return q

    def plain(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Keys are stored with the slot last, in AMX's tiles by pairs of numbers (quire.h)."""
        count, heads, slots, width = keys.shape
        if self.library.quire_lies_in_tiles(TYPES[keys.dtype], width):
            pairs = keys.reshape(count, heads, width // 2, slots, 2)
            return pairs.transpose(2, 3).reshape(keys.shape), values
        return keys.reshape(count, heads, width, slots).transpose(2, 3), values

    def attend(
        self, q: Tensor, keys: Tensor, values: Tensor, sinks: Tensor | None = None
    ) -> Tensor:
        if sinks is not None:
            raise ValueError("sinks are not computed here: see `fits` in kernels.py.")
        q = q.contiguous()  # as rope_and_store gives it
        out = q.new_empty(q.shape[0], self.shape.num_heads * self.shape.head_dim)
        if q.shape[0] > self.num_tokens:
            out[self.num_tokens :] = 0  # padding, which belongs to no sequence
        work = self.work
        work.cache_type = TYPES[keys.dtype]
        work.q, work.out = q.data_ptr(), out.data_ptr()
        work.keys, work.values = keys.data_ptr(), values.data_ptr()
        self.library.quire_attend(work)
        return out


def shared_blocks(
    inputs: AttentionInputs, lengths: Longs, block_size: int, window: int | None
) -> tuple[Longs, Longs]:
    """(the group of each sequence, or -1; the number of blocks that each group shares)"""
    groups = np.full(len(lengths), -1, np.int64)
    counts = np.array([len(blocks) for blocks, _ in inputs.prefixes], np.int64)
    if window is None:
        for number, (_, members) in enumerate(inputs.prefixes):
            rows, tokens = members.numpy(), int(counts[number]) * block_size
            # A row's present token must be outside of the shared blocks.
            fits = (groups[rows] < 0) & (lengths[rows] > tokens)
            if tokens >= TILE:
                groups[rows[fits]] = number
    return groups, counts
