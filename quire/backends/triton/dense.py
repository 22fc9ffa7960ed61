"""Attention of long slices by the vendor's library, which is faster there than our kernels.

It knows neither blocks nor slices: queries, keys and values lie in one piece, queries see all
keys, or query i the first i + 1. For every pair of lengths it makes a plan, which takes it 70 ms,
and each call costs the host a tenth of a millisecond or two. So lengths are few, and calls large. A
slice is cut into pieces of a few lengths that begin where a unit does, counted from position 0:
what stands before a slice in its first unit is computed and left out, which is little, since these
are the queries that see the least. Its end, where no piece fits, is left to our kernel. A piece
sees its own keys as queries see them, and those before it, whole units, in stretches of a few
sizes. What stretches make is merged in float32 by the sums of their weights.

Worked example, units of 1,024: 10,000 tokens from position 2,500 on. The first piece has queries
2,048 .. 10,240, of which the first 452 are nobody's; they see their own keys, and keys 0 .. 2,048
as one stretch. The last 2,260 tokens are left to our kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quire.backends.ops import LONG_SLICE, AttentionInputs, HeadShape
from quire.backends.triton.dense_kernels import gather_tokens, merge_two
from quire.backends.triton.jit import power_of_two
from quire.backends.triton.prefill import PrefillAttention
from quire.backends.triton.tiles import padded_width

_WIDTHS = (64, 128)  # of heads: what the library is known to be fast at
_CAPABILITY = (9, 0)  # of the GPUs that it was measured on
_GATHERED = 64  # tokens that a program copies


@dataclass(frozen=True, slots=True)
class DenseSizes:
    """In tokens: the unit, the queries of a piece, and the stretches that keys before it are read
    in, down to a unit, both largest first. `worth`: operations of a call that take the device
    longer than the host."""

    unit: int = 1024
    lengths: tuple[int, ...] = (16384, 8192, LONG_SLICE)
    stretches: tuple[int, ...] = (8192, 4096, 2048, 1024)
    worth: int = 10**11


@dataclass(frozen=True, slots=True)
class _Piece:
    """Queries at positions begin .. begin + rows, of which first .. end are kept."""

    begin: int
    rows: int
    first: int
    end: int


def serves(shape: HeadShape, window: int | None, device: torch.device) -> bool:
    """Whether the library has what such heads need, on this device."""
    plain = (
        window is None and shape.softcap is None and not shape.sinks and not shape.values_in_keys
    )
    if not plain or shape.dtype.itemsize != 2 or shape.head_dim not in _WIDTHS:
        return False
    return device.type == "cpu" or torch.cuda.get_device_capability(device) >= _CAPABILITY


def cut(start: int, num_tokens: int, sizes: DenseSizes) -> list[_Piece]:
    """The pieces of a slice, the last of which may reach a little beyond it; what comes after
    that is left out."""
    pieces, at, end = [], start // sizes.unit * sizes.unit, start + num_tokens
    for length in sizes.lengths:
        while length <= (end - at) + (end - at) // 16:
            pieces.append(_Piece(at, length, max(at, start), min(at + length, end)))
            at += length
    return pieces


def worth_it(pieces: Sequence[_Piece], shape: HeadShape, sizes: DenseSizes) -> bool:
    """Whether the calls that these pieces take are large, on an average."""
    calls = sum(1 + len(stretches_of(piece.begin, sizes)) for piece in pieces)
    pairs = sum(piece.rows * (piece.begin + piece.rows // 2) for piece in pieces)
    operations = 4 * shape.num_heads * shape.head_dim * pairs
    return calls > 0 and operations >= calls * sizes.worth


def stretches_of(num_tokens: int, sizes: DenseSizes) -> list[tuple[int, int]]:
    """(first, count) of the stretches that so many tokens are read in: 13 units -> 8 4 1"""
    made, first = [], 0
    for size in sizes.stretches:
        while first + size <= num_tokens:
            made.append((first, size))
            first += size
    return made


class DenseSlice:
    """A slice of a pass whose tokens begin at `first_token`, and the first at position `start`.
    table [width] are its blocks."""

    def __init__(
        self,
        shape: HeadShape,
        table: Tensor,
        first_token: int,
        start: int,
        num_tokens: int,
        sizes: DenseSizes,
    ) -> None:
        self._shape, self._table, self._sizes = shape, table, sizes
        self._first_token, self._start, self._end = first_token, start, start + num_tokens
        pieces = cut(start, num_tokens, sizes)
        self._pieces = pieces if worth_it(pieces, shape, sizes) else []
        # Of the slice's tokens, from the first on.
        self.num_served = self._pieces[-1].end - start if self._pieces else 0

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, out: Tensor) -> None:
        """q [T, heads, D] -> out [T, heads * D], for those tokens of the slice that are served."""
        heads = out.view(out.shape[0], self._shape.num_heads, self._shape.head_dim)
        token = self._first_token - self._start  # where position 0 would be
        for piece in self._pieces:
            mine = rows_around(q, token + piece.begin, piece.rows)
            target = heads[token + piece.first : token + piece.end]
            kept = (piece.first - piece.begin, piece.end - piece.begin)
            seen = self._see(mine, keys, values, piece.begin, piece.rows, own=True)
            past = stretches_of(piece.begin, self._sizes)
            if not past:
                target.copy_(seen[0][slice(*kept)])
            for first, count in past:
                more = self._see(mine, keys, values, first, count, own=False)
                last = (first, count) == past[-1]
                seen = merged(seen, more, kept, target if last else None)

    def _see(
        self, mine: Tensor, keys: Tensor, values: Tensor, first: int, count: int, *, own: bool
    ) -> tuple[Tensor, Tensor]:
        """What queries make of `count` tokens from `first` on: means and sums (attend_dense)."""
        found = gather(keys, values, self._table, first, count, self._end, self._shape)
        return attend_dense(mine, *found, self._shape.scale, causal=own)


@dataclass(frozen=True, slots=True)
class DensePass:
    """The slices of a pass that are long enough, and what is left to our own kernel."""

    slices: tuple[DenseSlice, ...]
    rest: PrefillAttention | None

    @staticmethod
    def of(
        shape: HeadShape, inputs: AttentionInputs, num_tokens: int, sizes: DenseSizes
    ) -> DensePass | None:
        """Of so many tokens that are those of slices; None where no slice is long."""
        slices, first = [], 0
        for number, (count, start) in enumerate(inputs.spans):
            table = inputs.tables[number]
            slices.append(DenseSlice(shape, table, first, start, count, sizes))
            first += count
        served = [one.num_served for one in slices]
        if not any(served):
            return None
        rest = None
        if sum(served) < num_tokens:
            rest = _left_over(shape, inputs, served, num_tokens)
        return DensePass(tuple(one for one in slices if one.num_served), rest)

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, out: Tensor) -> None:
        if self.rest is not None:
            self.rest.attend(q, keys, values, out)
        for one in self.slices:
            one.attend(q, keys, values, out)


def _left_over(
    shape: HeadShape, inputs: AttentionInputs, served: Sequence[int], num_tokens: int
) -> PrefillAttention:
    """Our kernel's part: slices of which the first tokens are served are two of its sequences,
    and it skips the first of them."""
    parts = [(i, at) for i, count in enumerate(served) for at in ((0, count) if count else (0,))]
    skipped = [at == 0 and served[i] > 0 for i, at in parts]
    host = torch.tensor([(*part, skip) for part, skip in zip(parts, skipped, strict=True)])
    device = inputs.tables.device
    staged = host.pin_memory() if device.type == "cuda" else host
    number, at, skip = staged.to(device, non_blocking=True).unbind(1)
    starts = inputs.query_starts[number] + at
    starts = torch.cat([starts, inputs.query_starts[len(served) : len(served) + 1]])
    contexts, tables = inputs.context_lens[number], inputs.tables.index_select(0, number)
    return PrefillAttention(
        shape, starts.contiguous(), contexts, tables, num_tokens, skipped=skip.bool()
    )


def gather(
    keys: Tensor, values: Tensor, table: Tensor, first: int, count: int, end: int, shape: HeadShape
) -> tuple[Tensor, Tensor]:
    """Keys and values [count, kv_heads, D] of positions from `first` on; 0 from `end` on."""
    size = (count, shape.num_kv_heads, shape.head_dim)
    made = torch.empty((2, *size), dtype=shape.dtype, device=table.device)
    tokens = min(_GATHERED, count & -count)
    gather_tokens[(count // tokens, shape.num_kv_heads)](
        *(keys, values, table, made[0], made[1], first, min(end, first + count)),
        TOKENS=tokens,
        **gather_constants(shape),
    )
    return made[0], made[1]


def gather_constants(shape: HeadShape) -> dict[str, int]:
    """What `gather_tokens` is compiled for, beside how many tokens a program has."""
    return {
        "KV_HEADS": shape.num_kv_heads,
        "SLOTS": shape.block_size,
        "WIDTH": shape.head_dim,
        "PADDED": padded_width(shape),
        "num_warps": 4,
    }


def merged(
    seen: tuple[Tensor, Tensor],
    more: tuple[Tensor, Tensor],
    kept: tuple[int, int],
    target: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Means [T, heads, D] and sums [heads, T] over both sets of keys, of the tokens `kept`: in
    float32, in the place of those seen where they are that already, or to `target`."""
    (means, sums), (more_means, more_sums) = seen, more
    wide = means.dtype == torch.float32
    out, totals = means, sums
    if target is not None:
        out = target
    elif not wide:
        out, totals = torch.empty_like(means, dtype=torch.float32), torch.empty_like(sums)
    merge_two[(kept[1] - kept[0],)](
        *(means, sums, more_means, more_sums, out, totals),
        *(kept[0], kept[0] if target is not None else 0),
        *(sums.stride(0), more_sums.stride(0), totals.stride(0)),
        **merge_constants(means.shape[1], means.shape[2]),
    )
    return out, totals


def merge_constants(num_heads: int, width: int) -> dict[str, int]:
    """What `merge_two` is compiled for."""
    rows = power_of_two(num_heads)
    return {
        "HEADS": num_heads,
        "HEAD_ROWS": rows,
        "WIDTH": width,
        "PADDED": power_of_two(width),
        "num_warps": 4,
    }


def rows_around(q: Tensor, first: int, count: int) -> Tensor:
    """Lines first .. first + count of q [T, ...], contiguous: those before the first and behind the
    last are what lies there in memory, if q was made with room around it, else zeros."""
    line = q.stride(0)
    offset = q.storage_offset() + first * line
    room = q.untyped_storage().nbytes() // q.dtype.itemsize
    if q[0].is_contiguous() and line == q[0].numel() and 0 <= offset <= room - count * line:
        return q.as_strided((count, *q.shape[1:]), q.stride(), offset)
    padded = q.new_zeros(count, *q.shape[1:])
    begin, end = max(first, 0), min(first + count, q.shape[0])
    padded[begin - first : end - first] = q[begin:end]
    return padded


def attend_dense(
    q: Tensor, keys: Tensor, values: Tensor, scale: float, *, causal: bool
) -> tuple[Tensor, Tensor]:
    """q [T, heads, D], keys and values [n, kv_heads, D] -> means [T, heads, D] and the logarithms
    of what the weights add up to, float32 [heads, T]. `causal`: query i sees keys 0 .. i."""
    mine, keys, values = (x[None].transpose(1, 2) for x in (q, keys, values))
    if q.device.type == "cuda":
        attend: Any = torch.ops.aten._scaled_dot_product_cudnn_attention
        made = attend(mine, keys, values, None, True, 0.0, causal, scale=scale)
    else:  # what a CPU has stands in for it where kernels are interpreted
        group = q.shape[1] // keys.shape[1]
        keys, values = (x.repeat_interleave(group, 1) for x in (keys, values))
        attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        made = attend(mine, keys, values, 0.0, causal, scale=scale)
    means, sums = made[0][0].transpose(0, 1), made[1].reshape(q.shape[1], q.shape[0])
    return means.contiguous(), sums.contiguous()
