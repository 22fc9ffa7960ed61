"""InvariantKernels: a row gets the same bits in any batch, chunk or cache.

Four things would make a row's last bits depend on other rows, and each is avoided:
- Matrix products choose their algorithm by the number of rows. Only numbers of rows are used that
  gave equal bits in a test when the model was built; batches are padded to them (`padded`).
- Attention sums in an order that depends on where a chunk begins. Here keys come in tiles of 128,
  counted from position 0, and a query adds up its tiles from first to last; a tile of which it sees
  nothing has a weight of exactly 0.
- States take up many tokens, or tokens of many rows, at once. Here they take up each by itself.
- Some elementwise functions round differently in the tail of a vector (silu, exp2). Only others are
  used: exp, square root, and softmax and sums over rows of a fixed length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from quire.backends.cpu.attention import Scratch
from quire.backends.cpu.fast import CpuKernels
from quire.backends.cpu.linear import make_linear
from quire.backends.cpu.store import KvStore
from quire.backends.generic import softcapped
from quire.backends.linear import LinearOp
from quire.backends.ops import AttentionInputs, HeadShape, PlannedAttention, StateStep
from quire.backends.states import state_pass
from quire.errors import NotSupported

Longs = npt.NDArray[np.int64]

ROW_COUNTS = (16, 32, 64, 128, 256)
# 16-bit results would hide most differences from the test, so these products always have this many
# rows.
SHORT_ROW_COUNTS = (64,)
TILE = 128  # keys
QUERY_ROWS = 64  # rows of a chunk: tokens * group, padded
# The score of what a query must not see: its exponential is 0.
UNSEEN = -1e30
# Most tiles computed at once, which bounds the memory beside the cache.
TILES_AT_ONCE = 256


def agreeing(product: Callable[[Tensor], Tensor], x: Tensor, counts: tuple[int, ...]) -> set[int]:
    """The numbers of rows that give the same bits as the largest one, wherever a row is.

    x [largest, K] are rows to test with.
    """
    whole = product(x)
    if not torch.equal(product(x.roll(5, 0)).roll(-5, 0), whole):
        return set()
    same = {x.shape[0]}
    for count in counts:
        starts = (0, x.shape[0] - count, (x.shape[0] - count) // 2 + 1)
        tried = [(a, a + count) for a in starts if 0 <= a <= x.shape[0] - count]
        if all(torch.equal(product(x[a:b].clone()), whole[a:b]) for a, b in tried):
            same.add(count)
    return same


def unkept(what: str) -> NotSupported:
    return NotSupported(
        f"batch_invariant=True: on this machine {what} give a row other bits at other places of "
        "a batch, so the promise cannot be kept. Set batch_invariant=False, or another dtype."
    )


class InvariantKernels(CpuKernels):
    """The fast set's ops where they are batch-invariant, slower ones where they are not."""

    def __init__(self, shape: HeadShape) -> None:
        super().__init__(shape)
        wide = shape.dtype == torch.float32
        self.row_counts = frozenset(ROW_COUNTS if wide else SHORT_ROW_COUNTS)
        self.known: dict[tuple[int, int, bool], set[int]] = {}

    @cached_property
    def query_rows(self) -> tuple[int, int]:
        """Tested when attention is first computed here: a subclass may have its own attention."""
        return query_rows(self.shape)

    def padded(self, num_tokens: int) -> int:
        """With 16, 32, 64, 128, 256: 60 -> 64, 300 -> 256 + 48, 40 -> 48. No padding if no product
        made here depends on it: those of 8-bit matrices are exact."""
        if not self.known:
            return num_tokens
        counts = sorted(self.row_counts)
        whole, rest = divmod(num_tokens, counts[-1])
        above = next(c for c in counts if c >= rest)
        # Padding by up to a quarter costs less than one more product.
        if above * 4 > rest * 5:
            above = -(-rest // counts[0]) * counts[0]
        return whole * counts[-1] + above

    def cut(self, num_rows: int) -> list[int]:
        """The numbers of rows to compute in turn: 304 -> [256, 32, 16].

        Each number divides the next larger one, so a padded number leaves no rest."""
        cut = []
        for count in sorted(self.row_counts, reverse=True):
            cut += [count] * (num_rows // count)
            num_rows %= count
        return cut

    def make_linear(self, weight: Tensor, bias: Tensor | None) -> LinearOp:
        op = make_linear(weight, bias)
        key = (*weight.shape, bias is not None)
        if key not in self.known:
            made = torch.Generator().manual_seed(0)
            counts = tuple(sorted(self.row_counts))
            x = torch.randn(counts[-1], weight.shape[1], generator=made).to(weight.dtype)
            self.known[key] = agreeing(op, x, counts)
            self.row_counts &= self.known[key]
            if not self.row_counts:
                raise unkept(f"products with a matrix of {weight.shape[0]} x {weight.shape[1]}")
        return InvariantLinear(op, self)

    def plan_attention(self, inputs: AttentionInputs, window: int | None) -> PlannedAttention:
        return InvariantAttention(self.shape, self.scratch, self.query_rows, inputs, window)

    def plan_states(self, inputs: AttentionInputs) -> StateStep:
        return state_pass(inputs, self.shape.block_size, one_by_one=True)


class InvariantLinear:
    """A product that runs with numbers of rows that give equal bits."""

    def __init__(self, op: LinearOp, kernels: InvariantKernels) -> None:
        self.op, self.kernels = op, kernels

    def __call__(self, x: Tensor) -> Tensor:
        cut = self.kernels.cut(x.shape[0])
        if len(cut) == 1:
            return self.op(x)
        return torch.cat([self.op(part) for part in torch.split(x, cut)])

    def write_rows(self, first: int, rows: Tensor) -> None:
        self.op.write_rows(first, rows)

    def read_rows(self, first: int, count: int) -> Tensor:
        return self.op.read_rows(first, count)

    def tensors(self) -> tuple[Tensor, ...]:
        return self.op.tensors()


def query_rows(shape: HeadShape) -> tuple[int, int]:
    """(rows for one token, rows for a chunk) whose products with a tile give equal bits."""
    large = max(QUERY_ROWS, -(-shape.group // 8) * 8)
    made = torch.Generator().manual_seed(0)
    k, v = torch.randn(2, TILE, shape.head_dim, generator=made).to(shape.dtype).float()

    def product(q: Tensor, copies: int = 1) -> Tensor:
        q, keys, values = (x.expand(copies, *x.shape).contiguous() for x in (q, k, v))
        return torch.bmm(torch.bmm(q, keys.transpose(1, 2)), values)[-1]

    x = torch.randn(large, shape.head_dim, generator=made)
    counts = tuple(c for c in (8, 16, 32) if shape.group <= c < large)
    same = agreeing(product, x, counts)
    whole = product(x)
    if not same or not all(torch.equal(product(x, copies), whole) for copies in (2, 7, 50)):
        raise unkept("attention's products")
    return min(same), large


@dataclass(frozen=True, slots=True)
class Tiles:
    """Pieces of queries that see the same number of tiles.

    P pieces of up to `rows` (token, head of the group) pairs, each with t tiles.
    """

    tokens: Tensor  # [P, tokens of a piece]: tokens of the pass; padding repeats the first
    real: Tensor  # [P * tokens of a piece]: False at padding
    rows: int
    index: Tensor  # [P, kv_heads * t * granules]: rows of the cache
    hidden: Tensor  # [P, 1, t, rows, TILE]: True where a key must not be seen


class InvariantAttention(KvStore):
    """One pass, tile by tile."""

    def __init__(
        self,
        shape: HeadShape,
        scratch: Scratch,
        query_rows: tuple[int, int],
        inputs: AttentionInputs,
        window: int | None,
    ) -> None:
        super().__init__(shape, inputs.slots.numpy())
        self.scratch, self.window = scratch, window
        # The cache is read in pieces of a size that divides both a block and a tile.
        self.granule = int(np.gcd(shape.block_size, TILE))
        starts, lengths = inputs.query_starts.numpy(), inputs.context_lens.numpy()
        tables = inputs.tables.numpy()
        by_shape: dict[tuple[int, int], list[tuple[int, int, int, Longs]]] = {}
        for i, length in enumerate(lengths.tolist()):
            first, last = starts[i : i + 2].tolist()
            rows = query_rows[0 if last - first == 1 else 1]
            size = rows // shape.group
            for at in range(first, last, size):
                end = min(at + size, last)
                position = length - (last - at)
                lowest = 0 if window is None else max(0, position - window + 1) // TILE
                num_tiles = -(-(position + end - at) // TILE) - lowest
                by_shape.setdefault((rows, num_tiles), []).append((at, end, position, tables[i]))
        self.work = [
            self._tiles(rows, num_tiles, pieces[i : i + step])
            for (rows, num_tiles), pieces in by_shape.items()
            for step in [max(1, TILES_AT_ONCE // (num_tiles * shape.num_kv_heads))]
            for i in range(0, len(pieces), step)
        ]

    def _places(self, slots: Longs, granule: int) -> Longs:
        """The granules of slots for each KV head, in the cache viewed as [places, granule * D].

        slots [...] at the beginning of a granule -> [..., kv_heads]
        """
        size, heads = self.shape.block_size, np.arange(self.shape.num_kv_heads)
        blocks, offsets = slots // size, slots % size
        in_heads = blocks[..., None] * self.shape.num_kv_heads + heads
        places: Longs = in_heads * (size // granule) + (offsets // granule)[..., None]
        return places

    def _tiles(self, rows: int, num_tiles: int, pieces: list[tuple[int, int, int, Longs]]) -> Tiles:
        size, granule = self.shape.block_size, self.granule
        per_piece = rows // self.shape.group
        indices, hidden, tokens, real = [], [], [], []
        for first, last, position, table in pieces:
            end = position + last - first
            lowest = 0
            if self.window is not None:
                lowest = max(0, position - self.window + 1) // TILE * TILE
            begins = lowest + np.arange(num_tiles * TILE // granule) * granule
            # Keys after the end are read from the row's own first block, and masked.
            begins = np.where(begins < end, begins, 0)
            places = self._places(table[begins // size] * size + begins % size, granule)
            indices.append(places.T.reshape(-1))
            query_at = np.minimum(position + np.arange(per_piece), end - 1)[:, None]
            key_at = lowest + np.arange(num_tiles * TILE)
            unseen = key_at > query_at
            if self.window is not None:
                unseen |= key_at <= query_at - self.window
            hidden.append(np.pad(unseen.repeat(self.shape.group, 0), self._spare(rows), "edge"))
            fits = np.arange(per_piece) < last - first
            tokens.append(np.where(fits, first + np.arange(per_piece), first))
            real.append(fits)
        mask = np.stack(hidden).reshape(len(pieces), rows, num_tiles, TILE)
        return Tiles(
            tokens=torch.from_numpy(np.stack(tokens)),
            real=torch.from_numpy(np.concatenate(real)),
            rows=rows,
            index=torch.from_numpy(np.stack(indices)),
            hidden=torch.from_numpy(np.ascontiguousarray(mask.transpose(0, 2, 1, 3)))[:, None],
        )

    def _spare(self, rows: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Padding rows after the last whole token, as np.pad takes them."""
        return (0, rows % self.shape.group), (0, 0)

    def attend(
        self, q: Tensor, keys: Tensor, values: Tensor, sinks: Tensor | None = None
    ) -> Tensor:
        shape = self.shape
        width = self.granule * shape.head_dim
        k_rows = keys.view(-1, width)
        v_rows = k_rows if values is keys else values.view(-1, width)
        out = torch.zeros_like(q)
        for tiles in self.work:
            made = self._attend_tiles(tiles, q, k_rows, v_rows, sinks)
            out[tiles.tokens.view(-1)[tiles.real]] = made[tiles.real].to(q.dtype)
        return out.view(q.shape[0], -1)

    def _attend_tiles(
        self, tiles: Tiles, q: Tensor, k_rows: Tensor, v_rows: Tensor, sinks: Tensor | None
    ) -> Tensor:
        """[P * tokens of a piece, heads, D]"""
        shape, (num_pieces, per_piece) = self.shape, tiles.tokens.shape
        num_tiles, width = tiles.hidden.shape[2], shape.head_dim
        heads = (num_pieces, shape.num_kv_heads, num_tiles)
        index = tiles.index.view(-1)
        k = v = self.scratch.gather(k_rows, index, into=0).view(-1, TILE, width).float()
        if v_rows is not k_rows:
            v = self.scratch.gather(v_rows, index, into=1).view(-1, TILE, width).float()
        queries = q.new_zeros(
            num_pieces, shape.num_kv_heads, tiles.rows, width, dtype=torch.float32
        )
        own = q[tiles.tokens].view(num_pieces, per_piece, shape.num_kv_heads, shape.group, width)
        used = per_piece * shape.group
        queries[:, :, :used] = own.transpose(1, 2).flatten(2, 3)
        queries *= shape.scale
        each = queries[:, :, None].expand(*heads, tiles.rows, width).reshape(-1, tiles.rows, width)
        scores = torch.bmm(each, k.transpose(1, 2)).view(*heads, tiles.rows, TILE)
        softcapped(scores, shape.softcap).masked_fill_(tiles.hidden, UNSEEN)
        top = scores.amax(-1)
        chances = scores.softmax(-1)
        parts = torch.bmm(chances.view(-1, tiles.rows, TILE), v).view(*heads, tiles.rows, width)
        # The likeliest key of a tile contributes exp(0) = 1 to its sum of exponentials. A tile of
        # which nothing is seen has top UNSEEN, and so a weight of exactly 0.
        weights = top.sub(top.amax(2, keepdim=True)).exp_().div_(chances.amax(-1))
        total, result = weights[:, :, 0].clone(), weights[:, :, 0, :, None] * parts[:, :, 0]
        for t in range(1, num_tiles):
            total += weights[:, :, t]
            result += weights[:, :, t, :, None] * parts[:, :, t]
        if sinks is not None:
            total[:, :, :used] += self._of_sinks(sinks, top.amax(2)[:, :, :used])
        result /= total[..., None]
        result = result[:, :, :used].view(
            num_pieces, shape.num_kv_heads, per_piece, shape.group, width
        )
        return result.transpose(1, 2).reshape(-1, shape.num_heads, width)

    def _of_sinks(self, sinks: Tensor, top: Tensor) -> Tensor:
        """What sinks add to the sums of exponentials, which are relative to the scores `top`
        [pieces, kv_heads, rows]. A row is one head of the group of one token."""
        own = sinks.view(self.shape.num_kv_heads, self.shape.group)
        return (own.repeat(1, top.shape[2] // self.shape.group) - top).exp_()
