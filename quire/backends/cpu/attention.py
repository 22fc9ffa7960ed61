"""Paged attention on a CPU, in plain torch.

A slice of a prompt gathers its row's keys and values once and calls torch's own attention. Decode
rows are sorted by length and cut into buckets whose gathered KV fits into the processor's cache, so
that memory is read once. Rows that share a prefix read it in one matrix product, and the result is
merged with each row's own part by log-sum-exp in float32. Indices and masks are made once per pass,
for all layers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from quire.backends.cpu.scores import merge, partial, scores_of, share_beside
from quire.backends.cpu.store import KvStore, Longs
from quire.backends.ops import AttentionInputs, HeadShape

# Bytes of keys and values of a bucket, so that they are still in the second-level cache when they
# are multiplied: the best of 1, 2, 4 and 8 MB, measured.
BUCKET_BYTES = 1 << 20
# Queries of a slice with one mask, which bounds the mask's size for long prompts.
QUERY_PIECE = 512
# Most scores of a shared prefix that are in memory at once.
PREFIX_SCORES = 1 << 22


class Scratch:
    """Memory for gathered keys and values, used again by every bucket and layer."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.memory = torch.empty(2, 0, dtype=dtype)

    def gather(self, cache: Tensor, index: Tensor, *, into: int) -> Tensor:
        """cache [rows, width] -> its rows `index`, in memory for keys (into=0) or values (1)."""
        size = index.shape[0] * cache.shape[1]
        if self.memory.shape[1] < size:
            self.memory = torch.empty(2, size, dtype=self.dtype)
        out = self.memory[into, :size].view(index.shape[0], cache.shape[1])
        return torch.index_select(cache, 0, index, out=out)


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens first .. last of one slice, and the cache rows that they may see."""

    first: int
    last: int
    index: Tensor  # [kv_heads * blocks]: rows of the cache viewed as [N * kv_heads, S * D]
    num_keys: int
    mask: Tensor | None  # [queries, keys]; None: causal from position 0


@dataclass(frozen=True, slots=True)
class Bucket:
    """Decode rows first .. last in order of length, padded to the longest."""

    first: int
    last: int
    index: Tensor  # [rows * kv_heads * blocks]
    mask: Tensor  # [rows * kv_heads, 1, keys], added to scores


@dataclass(frozen=True, slots=True)
class Prefix:
    """Blocks with which decode rows first .. last all begin, in parts of bounded size."""

    first: int
    last: int
    indices: tuple[Tensor, ...]  # each [kv_heads * blocks]


class CpuAttention(KvStore):
    """One pass: slices as pieces, decode rows as prefixes and buckets."""

    def __init__(
        self, shape: HeadShape, scratch: Scratch, inputs: AttentionInputs, window: int | None
    ) -> None:
        super().__init__(shape, inputs.slots.numpy())
        self.scratch, self.window = scratch, window
        starts, lengths = inputs.query_starts.numpy(), inputs.context_lens.numpy()
        tables = inputs.tables.numpy()
        self.pieces = [
            piece
            for i in range(inputs.num_prefill)
            for piece in self._pieces(
                int(starts[i]), int(starts[i + 1]), int(lengths[i]), tables[i]
            )
        ]
        self.decode_at = self.num_tokens - (len(lengths) - inputs.num_prefill)
        self._plan_decode(lengths, tables, inputs)

    def _pieces(self, first: int, last: int, length: int, table: Longs) -> list[Piece]:
        """The pieces of a slice; one that starts at position 0 needs no mask and stays whole."""
        start = length - (last - first)
        if start == 0 and (self.window is None or length <= self.window):
            return [Piece(first, last, self._index(table, 0, length), length, None)]
        pieces = []
        for at in range(start, length, QUERY_PIECE):
            end = min(at + QUERY_PIECE, length)
            lowest = 0 if self.window is None else max(0, at - self.window + 1)
            lowest -= lowest % self.shape.block_size
            query_at, key_at = torch.arange(at, end)[:, None], torch.arange(lowest, end)[None]
            hidden = key_at > query_at
            if self.window is not None:
                hidden |= key_at <= query_at - self.window
            mask = torch.zeros(hidden.shape, dtype=self.shape.dtype)
            mask.masked_fill_(hidden, -torch.inf)
            index = self._index(table, lowest, end)
            pieces.append(Piece(first + at - start, first + end - start, index, end - lowest, mask))
        return pieces

    def _index(self, table: Longs, lowest: int, length: int) -> Tensor:
        """The cache rows of positions lowest .. length, head by head.

        Blocks [7 2] and 2 KV heads -> [14 4 | 15 5].
        """
        size = self.shape.block_size
        return self._rows_of(table[lowest // size : -(-length // size)])

    def _rows_of(self, blocks: Longs) -> Tensor:
        heads = np.arange(self.shape.num_kv_heads)
        rows = blocks[..., None, :] * self.shape.num_kv_heads + heads[:, None]
        return torch.from_numpy(rows.reshape(-1))

    def _plan_decode(self, lengths: Longs, tables: Longs, inputs: AttentionInputs) -> None:
        """Order the decode rows: rows of groups first; each group, and the rest, by length."""
        size, num_prefill = self.shape.block_size, inputs.num_prefill
        lengths, tables = lengths[num_prefill:], tables[num_prefill:]
        first_block = np.zeros(len(lengths), np.int64)
        if self.window is not None:
            first_block = np.maximum(lengths - self.window, 0) // size
        group_of = np.full(len(lengths), len(inputs.prefixes), np.int64)
        for g, (blocks, members) in enumerate(inputs.prefixes if self.window is None else ()):
            rows = members.numpy() - num_prefill
            # The row's present token must be outside of the shared blocks.
            rows = rows[
                (group_of[rows] == len(inputs.prefixes)) & (lengths[rows] > len(blocks) * size)
            ]
            group_of[rows], first_block[rows] = g, len(blocks)
        num_own = -(-lengths // size) - first_block
        order = np.lexsort((-num_own, group_of))
        self.order = torch.from_numpy(order)
        self.prefixes: list[Prefix] = []
        for g, (blocks, _) in enumerate(inputs.prefixes):
            at = np.flatnonzero(group_of[order] == g)
            if len(at):
                parts = self._prefix_parts(blocks.numpy(), len(at))
                self.prefixes.append(Prefix(int(at[0]), int(at[-1]) + 1, parts))
        self.num_grouped = int((group_of < len(inputs.prefixes)).sum())
        self.buckets = [
            self._bucket(first, last, order, lengths, tables, first_block)
            for first, last in self._cuts(num_own[order])
        ]

    def _prefix_parts(self, blocks: Longs, members: int) -> tuple[Tensor, ...]:
        scores_per_block = members * self.shape.num_heads * self.shape.block_size
        step = max(1, PREFIX_SCORES // scores_per_block)
        return tuple(self._rows_of(blocks[i : i + step]) for i in range(0, len(blocks), step))

    def _cuts(self, num_blocks: Longs) -> list[tuple[int, int]]:
        """Buckets as (first, last): none over BUCKET_BYTES, none across the end of the grouped
        rows, and none where padding would cost more than a fifth."""
        shape = self.shape
        block_bytes = 2 * shape.num_kv_heads * shape.block_size * shape.head_dim
        limit = max(1, BUCKET_BYTES // (block_bytes * shape.dtype.itemsize))
        cuts, first, real = [], 0, 0
        widest = 0
        for i, n in enumerate(num_blocks.tolist()):
            width, rows = max(widest, n), i - first + 1
            over = width * rows > limit or (real + n) * 5 < width * rows * 4
            if i > first and (over or i == self.num_grouped):
                cuts.append((first, i))
                first, real, width = i, 0, n
            real, widest = real + n, width
        if len(num_blocks):
            cuts.append((first, len(num_blocks)))
        return cuts

    def _bucket(
        self,
        first: int,
        last: int,
        order: Longs,
        lengths: Longs,
        tables: Longs,
        first_block: Longs,
    ) -> Bucket:
        rows, size = order[first:last], self.shape.block_size
        begins = first_block[rows][:, None]
        width = int((-(-lengths[rows] // size) - begins[:, 0]).max())
        wanted = begins + np.arange(width)
        # Keys after a row's end are read from its own first block and masked: other rows' blocks
        # may hold a NaN, which would stay a NaN behind the mask.
        wanted = np.where(wanted * size < lengths[rows][:, None], wanted, begins)
        index = self._rows_of(np.take_along_axis(tables[rows], wanted, axis=1))
        key_at = begins * size + np.arange(width * size)
        hidden = key_at >= lengths[rows][:, None]
        if self.window is not None:
            hidden |= key_at < (lengths[rows] - self.window)[:, None]
        mask = np.where(hidden, np.float32(-np.inf), np.float32(0))
        mask = np.repeat(mask, self.shape.num_kv_heads, axis=0)[:, None]
        wide = first < self.num_grouped or self.shape.sinks
        dtype = torch.float32 if wide else self.shape.dtype
        return Bucket(first, last, index, torch.from_numpy(mask).to(dtype))

    def attend(
        self, q: Tensor, keys: Tensor, values: Tensor, sinks: Tensor | None = None
    ) -> Tensor:
        shape = self.shape
        row_width = shape.block_size * shape.head_dim
        k_rows = keys.view(-1, row_width)
        v_rows = k_rows if values is keys else values.view(-1, row_width)
        out = q.new_empty(q.shape[0], shape.num_heads, shape.head_dim)
        for piece in self.pieces:
            self._attend_piece(piece, q, k_rows, v_rows, out, sinks)
        if self.buckets:
            self._attend_decode(q, k_rows, v_rows, out, sinks)
        return out.flatten(1)

    def _gathered(
        self, k_rows: Tensor, v_rows: Tensor, index: Tensor, lead: int
    ) -> tuple[Tensor, Tensor]:
        """Keys and values [lead, keys, D]."""
        k = self.scratch.gather(k_rows, index, into=0)
        v = k if v_rows is k_rows else self.scratch.gather(v_rows, index, into=1)
        width = self.shape.head_dim
        return k.view(lead, -1, width), v.view(lead, -1, width)

    def _attend_piece(
        self,
        piece: Piece,
        q: Tensor,
        k_rows: Tensor,
        v_rows: Tensor,
        out: Tensor,
        sinks: Tensor | None,
    ) -> None:
        k, v = self._gathered(k_rows, v_rows, piece.index, self.shape.num_kv_heads)
        own = q[piece.first : piece.last].transpose(0, 1)
        k, v = k[:, : piece.num_keys], v[:, : piece.num_keys]
        if self.shape.softcap is not None or sinks is not None:
            attended = self._attend_plainly(own, k, v, piece.mask, sinks)
        else:
            attended = F.scaled_dot_product_attention(
                *(own[None], k[None], v[None]),
                attn_mask=piece.mask,
                is_causal=piece.mask is None,
                scale=self.shape.scale,
                enable_gqa=self.shape.group > 1,
            )[0]
        out[piece.first : piece.last] = attended.transpose(0, 1)

    def _attend_plainly(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, sinks: Tensor | None
    ) -> Tensor:
        """As torch's attention, with softcapped scores and sinks: q [heads, T, D], k and v
        [kv_heads, keys, D] -> [heads, T, D]."""
        shape, count = self.shape, q.shape[1]
        if mask is None:
            mask = q.new_full((count, k.shape[1]), -torch.inf).triu_(1)
        queries = q.reshape(shape.num_kv_heads, shape.group * count, shape.head_dim)
        part, weight = partial(
            queries.float(), k.float(), v.float(), shape, mask.float().repeat(shape.group, 1)
        )
        part = part.view(shape.num_heads, count, shape.head_dim)
        if sinks is not None:
            part *= share_beside(weight.view(shape.num_heads, count), sinks[:, None])[..., None]
        return part.to(q.dtype)

    def _attend_decode(
        self, q: Tensor, k_rows: Tensor, v_rows: Tensor, out: Tensor, sinks: Tensor | None
    ) -> None:
        shape = self.shape
        heads = (shape.num_kv_heads, shape.group, shape.head_dim)
        q = q[self.decode_at : self.num_tokens].index_select(0, self.order)
        result = torch.empty_like(q)
        grouped = q[: self.num_grouped].float().view(-1, *heads)
        sums = torch.empty_like(grouped)
        weights = grouped.new_empty(grouped.shape[:-1])
        for bucket in self.buckets:
            rows = slice(bucket.first, bucket.last)
            num_heads = (bucket.last - bucket.first) * shape.num_kv_heads
            k, v = self._gathered(k_rows, v_rows, bucket.index, num_heads)
            if bucket.first < self.num_grouped:
                own = grouped[rows].view(num_heads, shape.group, shape.head_dim)
                part, weight = partial(own, k.float(), v.float(), shape, bucket.mask)
                sums[rows], weights[rows] = part.view(-1, *heads), weight.view(-1, *heads[:2])
                continue
            own = q[rows].view(num_heads, shape.group, shape.head_dim)
            if sinks is not None:
                part, weight = partial(own.float(), k.float(), v.float(), shape, bucket.mask)
                share = share_beside(weight.view(-1, shape.num_heads), sinks)[..., None]
                result[rows] = (part.view(-1, shape.num_heads, shape.head_dim) * share).to(q.dtype)
                continue
            scores = scores_of(own, k, shape, bucket.mask)
            chances = torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype)
            result[rows] = torch.bmm(chances, v).view(-1, shape.num_heads, shape.head_dim)
        for prefix in self.prefixes:
            self._attend_prefix(prefix, grouped, k_rows, v_rows, sums, weights)
        if sinks is not None:
            sums *= share_beside(weights, sinks.view(heads[:2]))[..., None]
        result[: self.num_grouped] = sums.view(-1, shape.num_heads, shape.head_dim)
        out[self.decode_at : self.num_tokens].index_copy_(0, self.order, result)

    def _attend_prefix(
        self,
        prefix: Prefix,
        q: Tensor,
        k_rows: Tensor,
        v_rows: Tensor,
        sums: Tensor,
        weights: Tensor,
    ) -> None:
        """Merge attention over the shared blocks into the members' sums and weights."""
        shape, rows = self.shape, slice(prefix.first, prefix.last)
        queries = q[rows].transpose(0, 1).reshape(shape.num_kv_heads, -1, shape.head_dim)
        for index in prefix.indices:
            k, v = self._gathered(k_rows, v_rows, index, shape.num_kv_heads)
            part, weight = partial(queries, k.float(), v.float(), shape, None)
            # [kv_heads, members * group, ...] -> [members, kv_heads, group, ...]
            members = prefix.last - prefix.first
            sized = (shape.num_kv_heads, members, shape.group)
            part = part.view(*sized, shape.head_dim).transpose(0, 1)
            weight = weight.view(sized).transpose(0, 1)
            merge(sums[rows], weights[rows], part, weight)
