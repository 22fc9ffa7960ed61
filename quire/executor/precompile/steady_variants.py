"""Variants of attention with the same bits for a row in any batch; see signatures.py."""

from __future__ import annotations

from dataclasses import dataclass

from quire.backends.ops import HeadShape
from quire.backends.triton import steady
from quire.backends.triton.steady_kernels import (
    attend_steady_items,
    attend_steady_prefixes,
    make_steady_items,
)
from quire.backends.triton.steady_prompt_kernels import attend_steady_tiles
from quire.backends.triton.tiles import steady_tiles
from quire.executor.precompile.variants import A_FRACTION, F32, I32, I64, SOME, Pointer, Variant


@dataclass(frozen=True, slots=True)
class SteadyAttention:
    """For heads of this shape; `own`: a pointer to their dtype."""

    shape: HeadShape
    own: Pointer

    def first(self, windows: list[bool]) -> list[Variant]:
        """`windows`: whether layers have a window: [False], [True] or both."""
        own, shape, width = self.own, self.shape, self._q_width()
        sinks, constants = F32 if shape.sinks else own, {"SINKS": shape.sinks}
        for_rows, for_prompts = steady_tiles(shape)
        given = (own, own, own, own, I64, I64, I32, I32, sinks, SOME, width, A_FRACTION, SOME)
        for_prompt = constants | steady.prompt_constants(shape, for_prompts)
        prompts = [
            Variant(attend_steady_tiles, given, {"HAS_WINDOW": has_window, **for_prompt})
            for has_window in windows
        ]
        rows = Variant(
            attend_steady_items,
            (*[own] * 3, *[I32] * 3, F32, F32, I32, own, sinks, SOME, SOME, width, A_FRACTION),
            constants | steady.row_constants(shape, for_rows),
        )
        return [*prompts, rows, self._items(shared=False)]

    def later(self) -> list[Variant]:
        """With shared prefixes."""
        own, width = self.own, self._q_width()
        given = (own, own, own, I32, I32, I32, F32, F32, SOME, width, A_FRACTION)
        constants = steady.prompt_constants(self.shape, steady_tiles(self.shape)[1])
        return [Variant(attend_steady_prefixes, given, constants), self._items(shared=True)]

    def _q_width(self) -> int:
        return self.shape.num_heads * self.shape.head_dim

    def _items(self, *, shared: bool) -> Variant:
        constants = {"HAS_STARTS": shared, "HAS_ROWS": True, **steady.items_constants()}
        return Variant(make_steady_items, (*[I32] * 5, *[SOME] * 3), constants)
