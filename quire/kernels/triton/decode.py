"""Attention of a decode step: one query token per row, over contexts of any mix of lengths.

A step's work is a list of items, each a stretch of one row's context, made on the device from
the lengths (`plan`). Long rows become many items, short ones one, rows without a context none.
A program takes one item of one KV head; what it finds (a weighted mean in float32 and the
log2-sum of its weights) is merged per row with the other items of the row and with what the row
got from shared prefixes. The grid is the same for every mix of lengths, so one CUDA graph is.

Worked example, stretches of 512: lengths [1300, 0, 70] make items
    0: row 0, 0..512   1: row 0, 512..1024   2: row 0, 1024..1300   3: row 2, 0..70
Full stretches of all rows come before what is left of each, so that the last programs to start
are short ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from quire.kernels.ops import HeadShape
from quire.kernels.triton.decode_code import attend_items, make_items, merge_parts
from quire.kernels.triton.jit import power_of_two, precision
from quire.kernels.triton.prefix import PrefixWork
from quire.kernels.triton.tiles import Tile, decode_tile, padded_width

LOG2_E = math.log2(math.e)
# At most so many programs from cutting rows, and a quarter of that where longer stretches
# than _LONG tokens would be the alternative: short ones balance better, long ones read faster.
_PROGRAMS_PER_CORE = 32
_LONG = 1024
_ITEMS_AT_ONCE = 16
_HEADS_AT_ONCE = 4  # of a row in one merging program
_FEW_ROWS = 64  # then each row has many parts, and every head its own program


@dataclass(frozen=True, slots=True)
class DecodeBuffers:
    """Room for the parts of a step, shared by every bucket and window; made once.

    parts [most items, heads, D] and their log2-sums [most items, heads], float32. The items of
    shared prefixes come after the rows' own.
    """

    parts: Tensor
    sums: Tensor
    num_own: int
    max_rows: int
    spread: int  # items that long rows may be cut into beyond one per row

    @staticmethod
    def make(
        shape: HeadShape,
        max_rows: int,
        device: torch.device,
        *,
        prefix_parts: int = 0,
        programs_per_core: int = _PROGRAMS_PER_CORE,
    ) -> DecodeBuffers:
        spread = -(-_num_cores(device) * programs_per_core // shape.num_kv_heads)
        num_own = max_rows + spread
        size = (num_own + prefix_parts, shape.num_heads)
        return DecodeBuffers(
            torch.empty(*size, shape.head_dim, dtype=torch.float32, device=device),
            torch.empty(size, dtype=torch.float32, device=device),
            num_own,
            max_rows,
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
        long: int = _LONG,
    ) -> None:
        if num_rows > buffers.max_rows:
            raise ValueError(f"{num_rows} rows do not fit buffers made for {buffers.max_rows}.")
        self.shape, self.buffers, self.num_rows = shape, buffers, num_rows
        self.window, self.prefixes = window, prefixes
        self._tile, self._long = tile or decode_tile(shape), long
        device = buffers.parts.device
        self._num_items = num_rows + buffers.spread
        # place of the row, first token, end, row of the table
        self._items = torch.empty(self._num_items, 4, dtype=torch.int32, device=device)
        # of each place: first full item, how many, the item of the rest, items in all
        self._spans = torch.empty(num_rows, 4, dtype=torch.int32, device=device)
        self._tables = self._lengths = self._items  # until there is a plan

    def plan(self, context_lens: Tensor, tables: Tensor, rows: Tensor | None = None) -> None:
        """Make the list of items of this step, for all layers.

        context_lens int32 [num_rows] (0 = nobody here), tables int32 [any, width]; place i
        reads the table of rows[i], or of i.
        """
        self._tables, self._lengths = tables, context_lens
        starts = self.prefixes.covered if self.prefixes else context_lens
        make_items[(triton.cdiv(self._num_items, _ITEMS_AT_ONCE),)](
            *(context_lens, starts, context_lens if rows is None else rows),
            *(self._items, self._spans),
            *(self.num_rows, self._num_items, self.buffers.spread, self.window or 0),
            HAS_STARTS=self.prefixes is not None,
            HAS_ROWS=rows is not None,
            KEYS=self._tile.keys,
            LONG=self._long,
            ITEMS=_ITEMS_AT_ONCE,
            ROWS=min(512, power_of_two(self.buffers.max_rows)),
            num_warps=4,
        )

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, out: Tensor | None = None) -> Tensor:
        """q [num_rows, heads, D] -> [num_rows, heads * D]; zeros where nobody is."""
        shape, buffers = self.shape, self.buffers
        if out is None:
            out = q.new_empty(self.num_rows, shape.num_heads * shape.head_dim)
        if self.prefixes:
            self.prefixes.attend(q, keys, values, self._lengths, buffers, self.window)
        attend_items[(shape.num_kv_heads, self._num_items)](
            *(q, keys, values, self._tables, self._items, buffers.parts, buffers.sums),
            *(self._tables.stride(0), q.stride(0), shape.scale * LOG2_E),
            KV_HEADS=shape.num_kv_heads,
            GROUP=shape.group,
            QUERIES=self._tile.queries,
            SLOTS=shape.block_size,
            KEYS=self._tile.keys,
            WIDTH=shape.head_dim,
            PADDED=padded_width(shape),
            PRECISION=precision(shape.dtype),
            num_warps=self._tile.warps,
            num_stages=self._tile.stages,
        )
        self.merge(out)
        return out

    def merge(self, out: Tensor, heads: int | None = None, warps: int = 1) -> None:
        """Each row's parts, its own and those of its prefixes, become its output."""
        shape, buffers = self.shape, self.buffers
        prefix_spans = self.prefixes.spans if self.prefixes else self._spans
        at_once = heads or (1 if self.num_rows <= _FEW_ROWS else _HEADS_AT_ONCE)
        merge_parts[(self.num_rows, triton.cdiv(shape.num_heads, at_once))](
            *(buffers.parts, buffers.sums, self._spans, prefix_spans, out),
            buffers.num_own,
            HEADS=shape.num_heads,
            HAS_PREFIXES=self.prefixes is not None,
            WIDTH=shape.head_dim,
            PADDED=padded_width(shape),
            PARTS=4,
            AT_ONCE=at_once,
            num_warps=warps,
        )


def _num_cores(device: torch.device) -> int:
    if device.type != "cuda":
        return 2
    return torch.cuda.get_device_properties(device).multi_processor_count
