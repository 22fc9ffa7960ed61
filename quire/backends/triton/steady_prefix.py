"""Shared prefixes if attention is cut by position alone (steady.py).

What a member gets from a prefix are whole pieces, each bit by bit as the row itself would compute
it: other queries beside a query change nothing. They are stored where the row's own pieces would
be, so merging does not depend on which pieces were shared. A prefix that ends inside a piece ends
before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from quire.backends.ops import HeadShape
from quire.backends.pieces import SHORT, most_pieces, whole_pieces
from quire.backends.triton.prefix import Ints, PrefixSize, PrefixWork, Stretch
from quire.backends.triton.steady import SteadyBuffers, prompt_constants
from quire.backends.triton.steady_kernels import attend_steady_prefixes
from quire.backends.triton.tiles import LOG2_E, steady_tiles


def steady_size(shape: HeadShape, num_rows: int) -> PrefixSize:
    """A size for every row in a group, and for some rows with long prefixes."""
    usual = PrefixSize.of(shape, num_rows, queries=steady_tiles(shape)[1].queries)
    return replace(usual, items=4 * usual.items)


class SteadyPrefixWork(PrefixWork):
    """A work list whose items are pieces."""

    def attend_pieces(
        self, q: Tensor, keys: Tensor, values: Tensor, buffers: SteadyBuffers
    ) -> None:
        """Compute all items' pieces, and store them in their rows' places."""
        shape = self.shape
        attend_steady_prefixes[(self.size.items, shape.num_kv_heads)](
            *(q, keys, values, *self._work, buffers.parts, buffers.sums),
            *(buffers.most, q.stride(0), shape.scale * LOG2_E),
            **prompt_constants(shape, self._tile),
        )

    def _stretches(self, groups: Sequence[tuple[Ints, Ints]]) -> list[Stretch]:
        size = self.shape.block_size
        if SHORT % size:
            return []
        whole = [(b[: whole_pieces(len(b) * size) // size], members) for b, members in groups]
        return super()._stretches([(b, members) for b, members in whole if len(b)])

    def _cuts(self, piece: Stretch, length: int, num_items: int, num_parts: int) -> list[int]:
        """Where pieces begin and end; [] if there is no room for all."""
        size = self.shape.block_size
        end, cuts = piece.first + len(piece.blocks), [piece.first]
        while cuts[-1] < end:
            cuts.append(whole_pieces(cuts[-1] * size, more=1) // size)
        needed = (len(cuts) - 1) * self._num_tiles(len(piece.members))
        return [at - piece.first for at in cuts] if num_items + needed <= self.size.items else []

    def _make_items(
        self, piece: Stretch, cuts: list[int], at_member: int, at_block: int, at_part: int
    ) -> Ints:
        """The same with the number of the piece for the first part."""
        made = super()._make_items(piece, cuts, at_member, at_block, at_part)
        made[:, 5] = [0 if at == 0 else most_pieces(at) for at in made[:, 4].tolist()]
        return np.ascontiguousarray(made)
