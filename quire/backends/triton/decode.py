"""Attention of a decode step: one query token per row, over contexts of any mix of lengths.

A step's work is a list of items, each a stretch of one row's context, made on the device from
the lengths (`plan`). Long rows become many items, short ones one, rows without a context none.
A program takes one item of one KV head; what it finds (a weighted mean in float32 and the
log2-sum of its weights) is merged, by the last program of a row to come, with the other items
of the row and with what the row got from shared prefixes. The grid is the same for every mix of
lengths, so one CUDA graph is.

Worked example, stretches of 512: lengths [1300, 0, 550] make items
    0: row 0, 0..512   1: row 0, 512..1024   2: row 0, 1024..1300   3: row 2, 0..550   4: row 1
Rows are cut into equal pieces (rounded up to what a program reads at a time), and those of long
rows come first, so that the last programs to start are short ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import triton

from quire.backends.ops import HeadNorms, HeadShape
from quire.backends.triton.decode_kernels import attend_items, merge_parts
from quire.backends.triton.jit import power_of_two, waiting
from quire.backends.triton.packed_kernels import attend_packed
from quire.backends.triton.split_kv_kernels import make_items
from quire.backends.triton.tiles import LOG2_E, Tile, attend_constants, decode_tile, padded_width

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from quire.backends.triton.prefix import PrefixWork

# Cutting rows gives two programs on a core where those need read no more than LONG tokens, else
# as many as that takes, up to _MOST_PER_CORE. Short ones balance better, long ones read faster.
_PROGRAMS_PER_CORE = 2
_MOST_PER_CORE = 32
LONG = 1024
_ITEMS_AT_ONCE = 16
_MERGED_VALUES = 2048  # values of parts that the merging program holds at once
_HEADS_AT_ONCE = 4  # of a row that one program merges with its prefixes


@dataclass(frozen=True, slots=True)
class DecodeBuffers:
    """Memory for the parts of a step, shared by all buckets and windows; allocated once.

    parts [most items, heads, D] and their log2-sums [most items, heads], float32. The items of
    shared prefixes come after the rows' own. counters int32 [rows, kv_heads]: how many parts of a
    row are computed; zero between kernels.
    """

    parts: Tensor
    sums: Tensor
    counters: Tensor
    num_own: int
    max_rows: int
    # Items that rows are cut into beyond one per row: how many there should be, and may be.
    wanted: int
    spread: int

    @staticmethod
    def make(
        shape: HeadShape,
        max_rows: int,
        device: torch.device,
        *,
        prefix_parts: int = 0,
    ) -> DecodeBuffers:
        import torch

        cores, heads = num_cores(device), shape.num_kv_heads
        spread = -(-cores * _MOST_PER_CORE // heads)
        num_own = max_rows + spread
        size = (num_own + prefix_parts, shape.num_heads)
        return DecodeBuffers(
            torch.empty(*size, shape.head_dim, dtype=torch.float32, device=device),
            torch.empty(size, dtype=torch.float32, device=device),
            torch.zeros(max_rows, shape.num_kv_heads, dtype=torch.int32, device=device),
            num_own,
            max_rows,
            -(-cores * _PROGRAMS_PER_CORE // heads),
            spread,
        )


class DecodeAttention:
    """Decode attention of `num_rows` rows with one window; inputs keep their addresses."""

    def __init__(
        self,
        shape: HeadShape,
        buffers: DecodeBuffers,
        num_rows: int,
        *,
        window: int | None = None,
        prefixes: PrefixWork | None = None,
        tile: Tile | None = None,
        long: int = LONG,
    ) -> None:
        import torch

        if num_rows > buffers.max_rows:
            raise ValueError(f"{num_rows} rows do not fit buffers made for {buffers.max_rows}.")
        self.shape, self.buffers, self.num_rows = shape, buffers, num_rows
        self.window, self.prefixes = window, prefixes
        self._tile = tile or decode_tile(shape, num_rows, shared=prefixes is not None)
        self._long = long
        device = buffers.parts.device
        # Every item has programs, used or not; with few rows the idle ones would take noticeable
        # time.
        self._spread = min(buffers.spread, max(buffers.wanted, 2 * num_rows))
        self._num_items = num_rows + self._spread
        # place of the row, first token, end, row of the table
        self._items = torch.empty(self._num_items, 4, dtype=torch.int32, device=device)
        # of each place: its first item, and how many
        self._spans = torch.empty(num_rows, 2, dtype=torch.int32, device=device)
        self._tables = self._lengths = self._items  # until there is a plan

    def plan(self, context_lens: Tensor, tables: Tensor, rows: Tensor | None = None) -> None:
        """Make the list of items of this step, for all layers.

        context_lens int32 [num_rows] (0: no row here), tables int32 [any, width]; place i reads the
        table of rows[i], or of i without `rows`.
        """
        self._tables, self._lengths = tables, context_lens
        starts = self.prefixes.covered if self.prefixes else context_lens
        make_items[(triton.cdiv(self._num_items, _ITEMS_AT_ONCE),)](
            *(context_lens, starts, context_lens if rows is None else rows),
            *(self._items, self._spans),
            *(self.num_rows, self._num_items, self.buffers.wanted, self._spread),
            self.window or 0,
            HAS_STARTS=self.prefixes is not None,
            HAS_ROWS=rows is not None,
            LONG=self._long,
            **items_constants(self._tile, self.buffers.max_rows),
        )

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
        """q [num_rows, heads, D] -> [num_rows, heads * D]; zeros for places without a row.
        `tables`: other tables than planned, of the same rows."""
        shape, buffers = self.shape, self.buffers
        tables = self._tables if tables is None else tables
        if out is None:
            out = q.new_empty(self.num_rows, shape.num_heads * shape.head_dim)
        if self.prefixes:
            self.prefixes.attend(q, keys, values, self._lengths, buffers, self.window)
        attend_items[(shape.num_kv_heads, self._num_items)](
            *(q, keys, values, tables, self._items, self._spans),
            *(buffers.parts, buffers.sums, buffers.counters, out),
            q if sinks is None else sinks,
            *(tables.stride(0), q.stride(0), shape.scale * LOG2_E),
            MERGES=self.prefixes is None,
            SINKS=sinks is not None,
            **own_constants(shape, self._tile),
        )
        if self.prefixes:
            self._merge(self.prefixes, out)
        return out

    @property
    def takes_packed(self) -> bool:
        """Whether `attend_packed` can be used: not with shared prefixes or fp8 KV."""
        return self.prefixes is None and not self.shape.fp8_kv

    def attend_packed(
        self,
        qkv: Tensor,
        cos: Tensor,
        sin: Tensor,
        slots: Tensor,
        keys: Tensor,
        values: Tensor,
        norms: HeadNorms | None = None,
        *,
        tables: Tensor | None = None,
    ) -> Tensor:
        """What norm_rope_store (heads.py) and then `attend` compute, in one launch.

        It may begin while the kernel launched before it runs, and then waits for what that made
        of `qkv`. Everything else, what `plan` made included, must be older: written before a
        kernel that does not overlap with those before it.
        """
        shape, buffers = self.shape, self.buffers
        tables = self._tables if tables is None else tables
        out = qkv.new_empty(self.num_rows, shape.num_heads * shape.head_dim)
        q_weight, k_weight = (norms.q, norms.k) if norms else (qkv, qkv)
        attend_packed[(shape.num_kv_heads, self._num_items)](
            *(qkv, cos, sin, slots, q_weight, k_weight, keys, values),
            *(tables, self._items, self._spans),
            *(buffers.parts, buffers.sums, buffers.counters, out),
            *(tables.stride(0), shape.scale * LOG2_E, norms.eps if norms else 0.0),
            NORMED=norms is not None,
            **packed_constants(shape, self._tile),
        )
        return out

    def _merge(self, prefixes: PrefixWork, out: Tensor) -> None:
        """Merge each row's own parts and those of its prefixes into its output. All rows have
        several parts then, and programs of one warp merge them faster than those that computed
        them."""
        shape, buffers = self.shape, self.buffers
        merge_parts[(self.num_rows, triton.cdiv(shape.num_heads, _HEADS_AT_ONCE))](
            *(buffers.parts, buffers.sums, self._spans, prefixes.spans, self._lengths, out),
            buffers.num_own,
            **merge_constants(shape),
        )


def items_constants(tile: Tile, max_rows: int) -> dict[str, Any]:
    """The constants of `make_items`, for rows of any length."""
    rows = min(512, power_of_two(max_rows))
    return {"KEYS": tile.keys, "ITEMS": _ITEMS_AT_ONCE, "ROWS": rows, "num_warps": 4}


def own_constants(shape: HeadShape, tile: Tile) -> dict[str, Any]:
    """The constants of `attend_items`, with prefixes and without."""
    return {
        **attend_constants(shape, tile),
        "MERGED": _merged_at_once(shape),
        "GROUP_ROWS": power_of_two(shape.group),
    }


def packed_constants(shape: HeadShape, tile: Tile) -> dict[str, Any]:
    """The constants of `attend_packed`, with norms and without."""
    return {**own_constants(shape, tile), **waiting()}


def merge_constants(shape: HeadShape) -> dict[str, int]:
    """The constants of `merge_parts`."""
    return {
        "HEADS": shape.num_heads,
        "WIDTH": shape.head_dim,
        "PADDED": padded_width(shape),
        "PARTS": 4,
        "AT_ONCE": _HEADS_AT_ONCE,
        "num_warps": 1,
    }


def _merged_at_once(shape: HeadShape) -> int:
    return max(2, min(16, _MERGED_VALUES // (power_of_two(shape.group) * padded_width(shape))))


def num_cores(device: torch.device) -> int:
    import torch

    if device.type != "cuda":
        return 2
    return torch.cuda.get_device_properties(device).multi_processor_count
