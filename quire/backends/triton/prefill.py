"""Attention of prefill slices: many query tokens per sequence, over the paged cache.

Queries are cut into tiles that hold all query heads of one KV head for a few neighbouring tokens,
so that keys and values are loaded once for the group. The device computes once per pass which tile
belongs to which sequence, so nothing waits for the lengths.

Worked example, tiles of 4 tokens: query_starts [0, 6, 7] make tiles
    0: sequence 0, tokens 0..4   1: sequence 0, tokens 4..6   2: sequence 1, token 6
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import triton

from quire.backends.ops import HeadShape
from quire.backends.triton.prefill_kernels import attend_tiles, make_tiles
from quire.backends.triton.tiles import LOG2_E, Tile, attend_constants, prompt_tile

if TYPE_CHECKING:
    from torch import Tensor

_TILES_AT_ONCE = 16


class PrefillAttention:
    """The slices of one pass, for every layer with the same window.

    query_starts [n + 1] and context_lens [n] on the device, tables [n, width];
    `num_tokens` = query_starts[n].
    """

    def __init__(
        self,
        shape: HeadShape,
        query_starts: Tensor,
        context_lens: Tensor,
        tables: Tensor,
        num_tokens: int,
        *,
        window: int | None = None,
        tile: Tile | None = None,
        skipped: Tensor | None = None,
    ) -> None:
        """`skipped` bool [n]: sequences that are computed elsewhere."""
        import torch

        self.shape, self.window, self.num_tokens = shape, window, num_tokens
        self._inputs = (query_starts, context_lens, tables)
        self._tile = tile or prompt_tile(shape)
        num_sequences = context_lens.shape[0]
        per_tile = self._tile.queries // shape.group
        self._num_tiles = num_tokens // per_tile + num_sequences
        # sequence, first token; sequence -1 = no tile
        self._tiles = torch.empty(self._num_tiles, 2, dtype=torch.int32, device=context_lens.device)
        make_tiles[(triton.cdiv(self._num_tiles, _TILES_AT_ONCE),)](
            *(query_starts, self._tiles, num_sequences, self._num_tiles),
            **tiles_constants(shape, self._tile),
        )
        if skipped is not None:
            owner = self._tiles[:, 0]
            owner.masked_fill_(skipped[owner.clamp(min=0)], -1)

    def attend(
        self, q: Tensor, keys: Tensor, values: Tensor, out: Tensor, sinks: Tensor | None = None
    ) -> Tensor:
        """q [T, heads, D] -> out [T, heads * D], for the tokens of the slices."""
        shape, tile = self.shape, self._tile
        query_starts, context_lens, tables = self._inputs
        attend_tiles[(self._num_tiles, shape.num_kv_heads)](
            *(q, keys, values, out, query_starts, context_lens, tables, self._tiles),
            q if sinks is None else sinks,
            *(tables.stride(0), q.stride(0), shape.scale * LOG2_E, self.window or 0),
            HAS_WINDOW=self.window is not None,
            SINKS=sinks is not None,
            **attend_constants(shape, tile),
        )
        return out


def tiles_constants(shape: HeadShape, tile: Tile) -> dict[str, Any]:
    """The constants of `make_tiles`."""
    per_tile = tile.queries // shape.group
    return {"PER_TILE": per_tile, "TILES": _TILES_AT_ONCE, "SEQUENCES": 256, "num_warps": 4}
