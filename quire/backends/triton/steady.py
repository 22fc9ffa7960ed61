"""Attention that gives a token the same bits in any batch and any chunk.

A context is cut into pieces at positions that are the same for all rows. Attention over each piece
is computed by itself, tile by tile from its beginning, and the results of pieces are merged from
first to last. Decode rows and prompts do exactly the same: a tile or piece of which a query sees
nothing has a weight of exactly 0. So the order of all sums depends neither on other rows, nor on
where a chunk begins, nor on the present length of the row.

Worked example: lengths [1300, 0, 5000] make items
    0: row 0, 0..512   1: row 0, 512..1024   2: row 0, 1024..1300   3: row 1, none
    4: row 2, 0..512 .. 11: row 2, 3584..4096   12: row 2, 4096..5000
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import triton

from quire.backends.ops import HeadShape
from quire.backends.pieces import most_pieces
from quire.backends.triton.decode import num_cores
from quire.backends.triton.jit import power_of_two
from quire.backends.triton.prefill import PrefillAttention
from quire.backends.triton.steady_kernels import FIELDS, attend_steady_items, make_steady_items
from quire.backends.triton.steady_prompt_kernels import attend_steady_tiles
from quire.backends.triton.tiles import LOG2_E, Tile, attend_constants, steady_tiles

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_ITEMS_AT_ONCE = 16
_PROGRAMS_PER_CORE = 8


@dataclass(frozen=True, slots=True)
class SteadyBuffers:
    """Room for the pieces of a step, shared by every bucket; made once.

    parts [rows, most, heads, D] and their log2-sums [rows, most, heads], float32: piece i of the
    row in place r is at [r, i]. counters int32 [rows, kv_heads]: how many of a row's own are made;
    zero between kernels.
    """

    parts: Tensor
    sums: Tensor
    counters: Tensor
    most: int  # pieces of a row
    programs: int  # beyond one for each row and KV head

    @staticmethod
    def make(shape: HeadShape, max_rows: int, longest: int, device: torch.device) -> SteadyBuffers:
        """For rows of at most `longest` tokens."""
        import torch

        most = most_pieces(longest)
        size = (max_rows, most, shape.num_heads)
        return SteadyBuffers(
            torch.empty(*size, shape.head_dim, dtype=torch.float32, device=device),
            torch.empty(size, dtype=torch.float32, device=device),
            torch.zeros(max_rows, shape.num_kv_heads, dtype=torch.int32, device=device),
            most,
            -(-num_cores(device) * _PROGRAMS_PER_CORE // shape.num_kv_heads),
        )


class SharedPieces(Protocol):
    """Pieces that several rows share; see steady_prefix.py."""

    @property
    def covered(self) -> Tensor:
        """int32 [places]: tokens of each place that are in such pieces."""

    def attend_pieces(
        self, q: Tensor, keys: Tensor, values: Tensor, buffers: SteadyBuffers
    ) -> None: ...


class SteadyDecode:
    """Decode attention of `num_rows` rows with one window; inputs keep their addresses. As
    DecodeAttention, but that rows with a window share nothing."""

    def __init__(
        self,
        shape: HeadShape,
        buffers: SteadyBuffers,
        num_rows: int,
        *,
        window: int | None = None,
        prefixes: SharedPieces | None = None,
        tile: Tile | None = None,
    ) -> None:
        import torch

        self.shape, self.buffers, self.num_rows = shape, buffers, num_rows
        self.window, self.prefixes = window, prefixes
        self._tile = tile or steady_tiles(shape)[0]
        device, self._most_items = buffers.parts.device, num_rows * buffers.most
        self._items = torch.empty(self._most_items, FIELDS.value, dtype=torch.int32, device=device)
        self._total = torch.zeros(1, dtype=torch.int32, device=device)
        self._tables = self._items  # until there is a plan

    def plan(self, context_lens: Tensor, tables: Tensor, rows: Tensor | None = None) -> None:
        """As DecodeAttention.plan."""
        self._tables = tables
        starts = self.prefixes.covered if self.prefixes else context_lens
        make_steady_items[(triton.cdiv(self._most_items, _ITEMS_AT_ONCE),)](
            *(context_lens, starts, context_lens if rows is None else rows),
            *(self._items, self._total, self.num_rows, self._most_items, self.window or 0),
            HAS_STARTS=self.prefixes is not None,
            HAS_ROWS=rows is not None,
            **items_constants(),
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
        """As DecodeAttention.attend."""
        shape, buffers = self.shape, self.buffers
        tables = self._tables if tables is None else tables
        if out is None:
            out = q.new_empty(self.num_rows, shape.num_heads * shape.head_dim)
        if self.prefixes:
            self.prefixes.attend_pieces(q, keys, values, buffers)
        programs = min(self._most_items, self.num_rows + buffers.programs)
        attend_steady_items[(shape.num_kv_heads, programs)](
            *(q, keys, values, tables, self._items, self._total),
            *(buffers.parts, buffers.sums, buffers.counters, out),
            q if sinks is None else sinks,
            *(buffers.most, tables.stride(0), q.stride(0), shape.scale * LOG2_E),
            SINKS=sinks is not None,
            **row_constants(shape, self._tile),
        )
        return out


class SteadyPrefill(PrefillAttention):
    """The slices of one pass."""

    def attend(
        self, q: Tensor, keys: Tensor, values: Tensor, out: Tensor, sinks: Tensor | None = None
    ) -> Tensor:
        shape, (query_starts, context_lens, tables) = self.shape, self._inputs
        attend_steady_tiles[(self._num_tiles, shape.num_kv_heads)](
            *(q, keys, values, out, query_starts, context_lens, tables, self._tiles),
            q if sinks is None else sinks,
            *(tables.stride(0), q.stride(0), shape.scale * LOG2_E, self.window or 0),
            HAS_WINDOW=self.window is not None,
            SINKS=sinks is not None,
            **prompt_constants(shape, self._tile),
        )
        return out


def items_constants() -> dict[str, int]:
    """The constants of `make_steady_items`, with prefixes and without."""
    return {"ITEMS": _ITEMS_AT_ONCE, "ROWS": 512, "num_warps": 4}


def prompt_constants(shape: HeadShape, tile: Tile) -> dict[str, Any]:
    """The constants of `attend_steady_tiles` and `attend_steady_prefixes`."""
    return {**attend_constants(shape, tile), "enable_fp_fusion": False}


def row_constants(shape: HeadShape, tile: Tile) -> dict[str, Any]:
    """The constants of `attend_steady_items`."""
    return {**prompt_constants(shape, tile), "GROUP_ROWS": power_of_two(shape.group)}
