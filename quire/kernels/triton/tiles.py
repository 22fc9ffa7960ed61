"""How large the pieces are that attention kernels work on, by head size and dtype.

Chosen from measurements on one H200, not searched for at run time.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from quire.kernels.ops import HeadShape
from quire.kernels.triton.jit import power_of_two

# Bytes of keys (and as many of values) that a decode program asks for at a time.
_DECODE_TILE_BYTES = 32 << 10
_MMA_ROWS = 16  # the fewest rows tl.dot takes
MANY_ROWS = 512


@dataclass(frozen=True, slots=True)
class Tile:
    """`queries` x `keys` of one KV head at a time."""

    queries: int
    keys: int
    warps: int
    stages: int


def decode_tile(shape: HeadShape, num_rows: int) -> Tile:
    """One row's query heads of a KV head against as many keys as keep the memory busy."""
    queries = max(_MMA_ROWS // 2 if shape.fp8_kv else _MMA_ROWS, power_of_two(shape.group))
    keys = min(128, _keys_within(shape, _DECODE_TILE_BYTES))
    if shape.fp8_kv:
        # Half the bytes and twice the instructions for each: what counts is how few of those there
        # are. Warps alone wait for nobody, but need company to keep the memory busy.
        if queries * padded_width(shape) > 1024:  # more than two warps hold in registers
            return Tile(queries, min(64, keys), 4, 3)
        alone = num_rows >= MANY_ROWS and padded_width(shape) >= 128
        return Tile(queries, min(64, keys), 1, 4) if alone else Tile(queries, keys, 2, 3)
    # Half as many keys and warps, fetched further ahead, read 1 to 6 % faster while there are many
    # programs. At the end, when few are left, each must ask for more: that tells with few rows.
    if num_rows >= MANY_ROWS and padded_width(shape) >= 128:
        return Tile(queries, max(_MMA_ROWS, keys // 2), 2, 5)
    return Tile(queries, keys, 4, 3)


def many_queries_tile(shape: HeadShape, queries: int) -> Tile:
    """Many queries against the same keys: tensor cores are the limit, not memory."""
    keys = min(64, _keys_within(shape, 32 << 10))
    wide = padded_width(shape) > 128 or shape.dtype == torch.float32
    narrow = padded_width(shape) < 128
    return Tile(queries, keys, 8 if queries > 64 and (wide or narrow) else 4, 2 if wide else 3)


def padded_width(shape: HeadShape) -> int:
    """head_dim as the kernels hold it."""
    return max(_MMA_ROWS, power_of_two(shape.head_dim))


def _keys_within(shape: HeadShape, num_bytes: int) -> int:
    keys = num_bytes // (padded_width(shape) * (1 if shape.fp8_kv else shape.dtype.itemsize))
    return max(_least_keys(shape), min(256, keys))


def _least_keys(shape: HeadShape) -> int:
    """Values in fp8 are multiplied in two halves."""
    return 2 * _MMA_ROWS if shape.fp8_kv else _MMA_ROWS
