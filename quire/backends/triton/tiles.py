"""Sizes of the tiles of attention kernels, by head size and dtype.

Chosen from measurements on one H200, not searched at run time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from quire.backends.ops import HeadShape
from quire.backends.triton.jit import power_of_two, precision

LOG2_E = math.log2(math.e)  # scores are in units of log2
# Bytes of keys (and as many of values) that a decode program loads at a time.
_DECODE_TILE_BYTES = 16 << 10
_MMA_ROWS = 16  # the fewest rows tl.dot takes
MANY_ROWS = 512


@dataclass(frozen=True, slots=True)
class Tile:
    """`queries` x `keys` of one KV head at a time."""

    queries: int
    keys: int
    warps: int
    stages: int


def decode_tile(shape: HeadShape, num_rows: int, *, shared: bool = False) -> Tile:
    """One row's query heads of a KV head against as many keys as keep the memory busy; `shared`:
    of rows that are left with few tokens of their own behind a shared prefix."""
    queries = max(_MMA_ROWS // 2 if shape.fp8_kv else _MMA_ROWS, power_of_two(shape.group))
    held = queries * padded_width(shape)
    if shape.fp8_kv:
        keys = min(128, _keys_within(shape, 2 * _DECODE_TILE_BYTES))
        # fp8 has half the bytes and needs twice the instructions for each, so these limit the
        # speed. Programs of one warp have no barriers, but only many of them keep the memory busy.
        if held > 1024:  # more than two warps hold in registers
            return Tile(queries, min(64, keys), 4, 3)
        alone = num_rows >= MANY_ROWS and padded_width(shape) >= 128
        return Tile(queries, min(64, keys), 1, 4) if alone else Tile(queries, keys, 2, 3)
    if shape.dtype.itemsize == 4:  # multiplied without tensor cores, which takes more registers
        return Tile(queries, min(128, _keys_within(shape, 2 * _DECODE_TILE_BYTES)), 4, 2)
    keys = min(64, _keys_within(shape, _DECODE_TILE_BYTES))
    # Programs on a core run while others wait. More small ones fit, which matters where each has
    # little to read.
    if shared and held <= 2048:
        return Tile(queries, max(_MMA_ROWS, keys // 2), 1, 3)
    return Tile(queries, keys, max(2, min(8, held // 2048)), 3)


def prompt_tile(shape: HeadShape) -> Tile:
    """The tile of a prompt."""
    width = padded_width(shape)
    few = shape.dtype.itemsize == 4 or (width <= 128 and not shape.fp8_kv)
    # Of 128 queries of more than 256 numbers, and keys beside them, a core holds not even one tile.
    return many_queries_tile(shape, 64 if few or width > 256 else 128)


def steady_tiles(shape: HeadShape) -> tuple[Tile, Tile]:
    """The tiles of a decode row and of prompts, where either must give the same bits: with as many
    keys, and with warps that hold whole lines of scores each, so that sums have one order. Without
    tensor cores that takes the same tile, and of wide heads one that is mostly empty reads faster
    than a warp alone."""
    prompt = many_queries_tile(shape, 64)
    queries = power_of_two(shape.group)
    if shape.dtype.itemsize == 4 or padded_width(shape) >= 128 or queries > _MMA_ROWS:
        return prompt, prompt
    return Tile(_MMA_ROWS, prompt.keys, 1, 2), prompt


def many_queries_tile(shape: HeadShape, queries: int) -> Tile:
    """So many queries, or those of one token, against the same keys: tensor cores are the limit,
    not memory."""
    queries = max(queries, power_of_two(shape.group))
    if shape.dtype.itemsize == 4:  # multiplied without tensor cores, which takes more registers
        return Tile(queries, min(64, _keys_within(shape, 16 << 10)), 8, 2)
    keys = min(64, _keys_within(shape, 32 << 10))
    wide = padded_width(shape) > 128
    # Best are 64: two programs on a core, so that one multiplies while the other takes exponents,
    # and four warps that have registers for all they hold.
    few = queries <= 64 or (shape.fp8_kv and padded_width(shape) == 128)
    fits = few and padded_width(shape) <= 256  # the sums of 64 queries, in the registers of four
    return Tile(queries, keys, 4 if fits else 8, 2 if wide else 3)


def attend_constants(shape: HeadShape, tile: Tile) -> dict[str, Any]:
    """The constants of all attention kernels."""
    return {
        "KV_HEADS": shape.num_kv_heads,
        "GROUP": shape.group,
        "QUERIES": tile.queries,
        "SLOTS": shape.block_size,
        "KEYS": tile.keys,
        "WIDTH": shape.head_dim,
        "PADDED": padded_width(shape),
        "PRECISION": precision(shape.dtype),
        "SOFTCAP": (shape.softcap or 0.0) * LOG2_E,
        "num_warps": tile.warps,
        "num_stages": tile.stages,
    }


def padded_width(shape: HeadShape) -> int:
    """head_dim, padded as in the kernels."""
    return max(_MMA_ROWS, power_of_two(shape.head_dim))


def _keys_within(shape: HeadShape, num_bytes: int) -> int:
    keys = num_bytes // (padded_width(shape) * (1 if shape.fp8_kv else shape.dtype.itemsize))
    return max(_least_keys(shape), min(256, keys))


def _least_keys(shape: HeadShape) -> int:
    """Values in fp8 are multiplied in two halves."""
    return 2 * _MMA_ROWS if shape.fp8_kv else _MMA_ROWS
