"""Attention to rows that are keys and values of every head at once (layers/latent.py).

A query has two parts, like a row: one for the row's latent, which is also the value, and one for
the few rotated numbers. So a row is read once for both, and only widths that are powers of two are
multiplied. All heads of a token see the same rows: a program computes up to 64 heads, of one item
of a decode row (decode.py) or of a few neighbouring tokens of a slice (prefill.py). Rows with the
same prefix each read it by themselves: the heads of one row keep a core as busy as those of
several.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from quire.backends.ops import AttentionInputs, HeadShape, LatentRows
from quire.backends.triton.decode import DecodeAttention, DecodeBuffers
from quire.backends.triton.jit import power_of_two, precision
from quire.backends.triton.latent_kernels import attend_row_items, attend_row_tiles, turn_rows
from quire.backends.triton.prefill import PrefillAttention
from quire.backends.triton.prefix import PrefixWork
from quire.backends.triton.tiles import LOG2_E, Tile

_MOST_HEADS = 64  # of a tile
_MERGED_HEADS = 8  # heads that a program merges at once
_TURNED_HEADS = 16  # heads that a program rotates at once
_LEAST = 16  # rows or columns of a product


def tiled_shape(shape: HeadShape) -> HeadShape:
    """The shape in which each tile of heads counts as one KV head, with the size of values."""
    heads = shape.num_heads
    tiles = next(n for n in range(-(-heads // _MOST_HEADS), heads + 1) if heads % n == 0)
    return replace(shape, num_kv_heads=tiles, head_dim=shape.value_dim, values_in_keys=0)


def decode_tile(shape: HeadShape) -> Tile:
    """The heads of one decode row."""
    queries = max(_LEAST, power_of_two(tiled_shape(shape).group))
    if shape.dtype.itemsize == 4:  # multiplied without tensor cores, which takes more registers
        return Tile(queries, _LEAST, 4, 1)
    return Tile(queries, 32, 8 if queries > _LEAST else 4, 2)


def prompt_tile(shape: HeadShape) -> Tile:
    """The heads of a few tokens."""
    if shape.dtype.itemsize == 4:
        return decode_tile(shape)
    return Tile(_MOST_HEADS, 32, 8, 2)


class LatentDecode(DecodeAttention):
    """DecodeAttention for latent rows, with a `tiled_shape` and buffers for it."""

    def __init__(self, shape: HeadShape, buffers: DecodeBuffers, num_rows: int) -> None:
        super().__init__(tiled_shape(shape), buffers, num_rows, tile=decode_tile(shape))
        self._rows = shape

    def attend(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        out: Tensor | None = None,
        *,
        tables: Tensor | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """q [num_rows, heads, D] -> [num_rows, heads * value_dim]; `values` are in `keys`."""
        shape, buffers = self.shape, self.buffers
        tables = self._tables if tables is None else tables
        if out is None:
            out = q.new_empty(self.num_rows, shape.num_heads * shape.head_dim)
        attend_row_items[(shape.num_kv_heads, self._num_items)](
            *(q.contiguous(), keys, tables, self._items, self._spans),
            *(buffers.parts, buffers.sums, buffers.counters, out),
            *(tables.stride(0), self._rows.scale * LOG2_E),
            **decode_constants(self._rows),
        )
        return out


def parts_shape(shape: HeadShape) -> HeadShape:
    """The shape for which buffers of parts are made."""
    return tiled_shape(shape) if shape.values_in_keys else shape


def decode_attention(
    shape: HeadShape,
    buffers: DecodeBuffers,
    num_rows: int,
    *,
    window: int | None = None,
    prefixes: PrefixWork | None = None,
) -> DecodeAttention:
    """The decode attention for keys and values of any kind."""
    if shape.values_in_keys:
        return LatentDecode(shape, buffers, num_rows)
    return DecodeAttention(shape, buffers, num_rows, window=window, prefixes=prefixes)


class LatentPrefill(PrefillAttention):
    """PrefillAttention for latent rows."""

    def __init__(self, shape: HeadShape, inputs: AttentionInputs, num_tokens: int) -> None:
        count = inputs.num_prefill
        super().__init__(
            *(tiled_shape(shape), inputs.query_starts[: count + 1], inputs.context_lens[:count]),
            *(inputs.tables[:count], num_tokens),
            tile=prompt_tile(shape),
        )
        self._rows = shape

    def attend(
        self, q: Tensor, keys: Tensor, values: Tensor, out: Tensor, sinks: Tensor | None = None
    ) -> Tensor:
        """q [T, heads, D] -> out [T, heads * value_dim], for the tokens of the slices."""
        query_starts, context_lens, tables = self._inputs
        attend_row_tiles[(self._num_tiles, self.shape.num_kv_heads)](
            *(q.contiguous(), keys, out, query_starts, context_lens, tables, self._tiles),
            *(tables.stride(0), self._rows.scale * LOG2_E),
            **prompt_constants(self._rows),
        )
        return out


def rotate_latents(given: LatentRows, slots: Tensor, keys: Tensor) -> Tensor:
    """Kernels.rotate_latents in one launch; slot -1 stores nothing."""
    q, row, norm, cos, sin = given.q.contiguous(), given.row, given.norm, given.cos, given.sin
    (count, heads, query), width, half = q.shape, row.shape[1], cos.shape[1]
    out = q.new_empty(count, heads, width)
    turn_rows[(count, -(-heads // _TURNED_HEADS) + 1)](
        *(q, row, norm.weight, cos, sin, slots, keys, out, len(slots)),
        *(row.stride(0), norm.eps),
        HEADS=heads,
        AT_ONCE=_TURNED_HEADS,
        QUERY=query,
        RANK=width - 2 * half,
        RANK_PADDED=power_of_two(width - 2 * half),
        HALF=half,
        HALF_PADDED=power_of_two(half),
        num_warps=1,
    )
    return out


class BatchedProducts:
    """A separate product for each head, in one call: [T, heads, K] into [T, heads, N]."""

    def __init__(self, weights: Tensor) -> None:
        """weights [heads, N, K]"""
        self._weights = weights

    def __call__(self, x: Tensor, out: Tensor) -> None:
        torch.bmm(x.transpose(0, 1), self._weights.transpose(1, 2), out=out.transpose(0, 1))


def decode_constants(shape: HeadShape) -> dict[str, Any]:
    """The constants of `attend_row_items`."""
    group = tiled_shape(shape).group
    merged = next(n for n in (_MERGED_HEADS, 4, 2, 1) if group % n == 0)
    return {**_constants(shape, decode_tile(shape)), "MERGED": 2, "GROUP_ROWS": merged}


def prompt_constants(shape: HeadShape) -> dict[str, Any]:
    """The constants of `attend_row_tiles`."""
    tile = prompt_tile(shape)
    per_tile = tile.queries // tiled_shape(shape).group
    return {**_constants(shape, tile), "PER_TILE": per_tile}


def _constants(shape: HeadShape, tile: Tile) -> dict[str, Any]:
    tiled, rank = tiled_shape(shape), shape.value_dim
    turned = shape.head_dim - rank
    return {
        "TILES": tiled.num_kv_heads,
        "GROUP": tiled.group,
        "QUERIES": tile.queries,
        "SLOTS": shape.block_size,
        "KEYS": tile.keys,
        "RANK": rank,
        "RANK_PADDED": max(_LEAST, power_of_two(rank)),
        "TURNED": turned,
        "TURNED_PADDED": max(_LEAST, power_of_two(turned)),
        "PRECISION": precision(shape.dtype),
        "num_warps": tile.warps,
        "num_stages": tile.stages,
    }
