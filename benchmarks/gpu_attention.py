"""The attention parts of gpu_kernels.py: decode, its tiles, shared prefixes, prefill."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import triton.testing
from torch import Tensor

from benchmarks.harness import Line
from quire.backends.ops import HeadShape
from quire.backends.triton.decode import DecodeAttention, DecodeBuffers
from quire.backends.triton.prefill import PrefillAttention
from quire.backends.triton.prefix import PrefixSize, PrefixWork
from quire.backends.triton.tiles import Tile

CUDA = torch.device("cuda")
BF16 = torch.bfloat16


def milliseconds(run: Callable[[], object], rep: int = 40) -> float:
    """Median time on the device, replayed from a graph so that launching costs nothing."""
    run()
    torch.cuda.synchronize()
    made: Any = triton.testing.do_bench_cudagraph(run, rep=rep, return_mode="median")
    return float(made)


def copy_bandwidth() -> float:
    """TB/s of a kernel that reads and writes everything once, both ways counted."""
    source = torch.randn(1 << 30, device=CUDA)
    target = torch.empty_like(source)
    return 2 * source.nbytes / milliseconds(lambda: torch.neg(source, out=target)) / 1e9


def paged_cache(shape: HeadShape, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(keys, values, tables) of contexts in shuffled blocks."""
    counts = (lengths.cpu().numpy() + shape.block_size - 1) // shape.block_size
    order = np.random.default_rng(0).permutation(int(counts.sum())).astype(np.int32)
    tables = np.zeros((len(counts), int(counts.max())), np.int32)
    for row, part in enumerate(np.split(order, counts.cumsum()[:-1])):
        tables[row, : len(part)] = part
    size = (len(order), shape.num_kv_heads, shape.block_size, shape.head_dim)
    keys, values = (torch.randn(size, device=CUDA, dtype=shape.dtype) for _ in range(2))
    return keys, values, torch.from_numpy(tables).to(CUDA)


def lengths_of(rows: int, context: int, ragged: str) -> Tensor:
    made = torch.Generator().manual_seed(0)
    if ragged == "equal":
        lengths = torch.full((rows,), context)
    elif ragged == "uniform":
        lengths = torch.randint(context // 8, 2 * context - context // 8, (rows,), generator=made)
    else:  # a few long rows among short ones, as many tokens in all
        lengths = torch.full((rows,), context // 2)
        lengths[:: max(1, rows // 8)] = context // 2 + context * rows // 16
    return lengths.to(CUDA, torch.int32)


class _Decode:
    """One setting of contexts, timed with any tile."""

    def __init__(self, shape: HeadShape, rows: int, context: int, ragged: str) -> None:
        self.shape, self.rows = shape, rows
        self.lengths = lengths_of(rows, context, ragged)
        self.keys, self.values, self.tables = paged_cache(shape, self.lengths)
        self.q = torch.randn(rows, shape.num_heads, shape.head_dim, device=CUDA, dtype=shape.dtype)
        tokens = int(self.lengths.sum())
        self.bytes = tokens * shape.num_kv_heads * shape.head_dim * 2 * shape.dtype.itemsize

    def attention(self, **options: Any) -> DecodeAttention:
        buffers = DecodeBuffers.make(self.shape, self.rows, CUDA)
        attention = DecodeAttention(self.shape, buffers, self.rows, **options)
        attention.plan(self.lengths, self.tables)
        return attention

    def terabytes(self, **options: Any) -> float:
        attention = self.attention(**options)
        out = torch.empty(self.rows, self.q[0].numel(), device=CUDA, dtype=self.shape.dtype)
        spent = milliseconds(lambda: attention.attend(self.q, self.keys, self.values, out))
        return self.bytes / spent / 1e9


def decode() -> Iterator[Line]:
    """TB/s of KV read, merge included, beside what a copy moves."""
    copied = copy_bandwidth()
    yield {"decode": "copy", "TB/s": round(copied, 3)}
    for heads, width in ((16, 128), (32, 128), (64, 128), (32, 64)):
        shape = HeadShape(heads, 8, width, 16, BF16)
        for rows, context in ((256, 1024), (1024, 768), (64, 2048), (16, 1024), (8, 4096)):
            for ragged in ("equal", "uniform", "few long"):
                made = _Decode(shape, rows, context, ragged).terabytes()
                yield {
                    "decode": f"{rows} x {context} {heads}/8x{width} {ragged}",
                    "TB/s": round(made, 3),
                    "of copy": round(made / copied, 3),
                }


def decode_sweep() -> Iterator[Line]:
    """Which tile; the table behind tiles.py."""
    for heads, width, rows, context, ragged in (
        (16, 128, 4, 2048, "uniform"),
        (16, 128, 16, 1024, "uniform"),
        (16, 128, 64, 1024, "uniform"),
        (16, 128, 128, 1024, "uniform"),
        (16, 128, 256, 1024, "equal"),
        (32, 128, 1024, 300, "uniform"),
        (32, 64, 64, 1024, "uniform"),
    ):
        setting = _Decode(HeadShape(heads, 8, width, 16, BF16), rows, context, ragged)
        found = []
        for keys, warps, stages in (
            (32, 1, 3), (32, 1, 4), (64, 2, 2), (64, 2, 3), (64, 4, 2), (64, 4, 3), (128, 4, 2)
        ):  # fmt: skip
            for long in (512, 1024):
                made = setting.terabytes(tile=Tile(16, keys, warps, stages), long=long)
                found.append((round(made, 3), keys, warps, stages, long))
        found.sort(reverse=True)
        yield {"sweep": f"{rows} x {context} {heads}/8x{width} {ragged}", "best first": found}


def prefix() -> Iterator[Line]:
    """2,000 rows with one prefix of 2,000 tokens, and 128 groups of 16 with 512."""
    for heads, kv_heads, width in ((16, 8, 128), (32, 8, 128), (32, 8, 64)):
        shape = HeadShape(heads, kv_heads, width, 16, BF16)
        for rows, num_groups, tokens, own in ((2000, 1, 2000, 100), (2048, 128, 512, 128)):
            for queries, warps, keys, stages in (
                (64, 4, 64, 3), (64, 4, 64, 2), (128, 8, 64, 3)
            ):  # fmt: skip
                tile = Tile(queries, keys, warps, stages)
                yield _time_prefix(shape, rows, num_groups, tokens, own, tile)


def _time_prefix(
    shape: HeadShape, rows: int, num_groups: int, tokens: int, own: int, tile: Tile
) -> Line:
    lengths = torch.full((rows,), own, dtype=torch.int32, device=CUDA)
    all_lengths = torch.cat([lengths, lengths.new_full((num_groups,), tokens)])
    keys, values, tables = paged_cache(shape, all_lengths)
    width, shared = tables.shape[1], tokens // 16
    own_tables = torch.zeros(rows, shared + width, dtype=torch.int32, device=CUDA)
    per_group = rows // num_groups
    own_tables[:, :shared] = tables[rows:, :shared].repeat_interleave(per_group, 0)
    own_tables[:, shared : shared + width] = tables[:rows]
    host = tables.cpu().numpy()
    groups = [
        (host[rows + g, :shared], np.arange(g * per_group, (g + 1) * per_group, dtype=np.int32))
        for g in range(num_groups)
    ]
    size = PrefixSize.of(shape, rows, queries=tile.queries, blocks=shared * num_groups)
    work = PrefixWork(shape, rows, CUDA, size, tile=tile)
    begin = time.perf_counter()
    served = work.fill(groups)
    filled = time.perf_counter() - begin
    buffers = DecodeBuffers.make(shape, rows, CUDA, prefix_parts=size.parts)
    attention = DecodeAttention(shape, buffers, rows, prefixes=work)
    attention.plan(lengths + shared * 16, own_tables)
    q = torch.randn(rows, shape.num_heads, shape.head_dim, device=CUDA, dtype=BF16)
    total = lengths + shared * 16
    alone = milliseconds(lambda: work.attend(q, keys, values, total, buffers, None))
    whole = milliseconds(lambda: attention.attend(q, keys, values))
    flops = 4 * rows * shape.num_heads * shape.head_dim * shared * 16
    kv = shape.num_kv_heads * shape.head_dim * 4
    return {
        "prefix": f"{rows} rows, {num_groups} x {tokens} {shape.num_heads}/8x{shape.head_dim}",
        "tile": (tile.queries, tile.keys, tile.warps, tile.stages),
        "served": served,
        "fill ms": round(filled * 1e3, 2),
        "prefix us": round(alone * 1e3, 1),
        "TFLOP/s": round(flops / alone / 1e9, 1),
        "prefix TB/s": round(num_groups * shared * 16 * kv / alone / 1e9, 3),
        "all us": round(whole * 1e3, 1),
        "ungrouped at 4 TB/s us": round(rows * (tokens + own) * kv / 4e6, 1),
    }


def prefill() -> Iterator[Line]:
    """TFLOP/s (causal half counted) of our kernel and of what torch has, 16k tokens."""
    for heads, kv_heads, width in ((16, 8, 128), (32, 8, 128), (32, 8, 64)):
        shape = HeadShape(heads, kv_heads, width, 16, BF16)
        for count, new, past in ((16, 1024, 0), (64, 256, 0), (168, 98, 2000)):
            q, k, v = (
                torch.randn(count, new, n, width, device=CUDA, dtype=BF16)
                for n in (heads, kv_heads, kv_heads)
            )
            flops = 4 * count * heads * width * (new * past + new * (new + 1) / 2)
            name = f"{count} x {new}+{past} {heads}/{kv_heads}x{width}"
            found: Line = {"prefill": name}
            for tile in (
                Tile(64, 64, 4, 3), Tile(64, 64, 4, 2), Tile(128, 64, 8, 3), Tile(128, 64, 8, 2)
            ):  # fmt: skip
                spent = _time_prefill(shape, count, new, past, q.flatten(0, 1), tile)
                key = f"{tile.queries}/{tile.keys}/{tile.warps}/{tile.stages}"
                found[key] = round(flops / spent / 1e9, 1)
            if past == 0:
                found.update(_torch_attention(q, k, v, flops))
            yield found


def _time_prefill(
    shape: HeadShape, count: int, new: int, past: int, q: Tensor, tile: Tile
) -> float:
    lengths = torch.full((count,), new + past, dtype=torch.int32, device=CUDA)
    keys, values, tables = paged_cache(shape, lengths)
    starts = torch.arange(count + 1, device=CUDA) * new
    attention = PrefillAttention(shape, starts, lengths, tables, count * new, tile=tile)
    out = torch.empty(len(q), q[0].numel(), device=CUDA, dtype=BF16)
    return milliseconds(lambda: attention.attend(q, keys, values, out), rep=20)


def _torch_attention(q: Tensor, k: Tensor, v: Tensor, flops: float) -> Line:
    """SDPA by backend with grouped heads, and varlen_attn, where they work."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    attend: Any = F.scaled_dot_product_attention
    heads_first = [x.transpose(1, 2) for x in (q, k, v)]
    found: Line = {}
    for name, backend in (
        ("cudnn", SDPBackend.CUDNN_ATTENTION),
        ("flash", SDPBackend.FLASH_ATTENTION),
    ):
        try:
            with sdpa_kernel(backend):
                spent = milliseconds(
                    partial(attend, *heads_first, is_causal=True, enable_gqa=True),
                    rep=20,
                )
            found[name] = round(flops / spent / 1e9, 1)
        except RuntimeError as refused:
            found[name] = str(refused)[:80]
    try:
        from torch.nn.attention import varlen

        packed: Any = varlen.varlen_attn
        count, new = q.shape[:2]
        starts = (torch.arange(count + 1, device=CUDA) * new).int()
        flat = [x.flatten(0, 1) for x in (q, k, v)]
        spent = milliseconds(
            partial(packed, *flat, starts, starts, new, new, window_size=(-1, 0)), rep=20
        )
        found["varlen"] = round(flops / spent / 1e9, 1)
    except (ImportError, RuntimeError, TypeError, ValueError) as refused:
        found["varlen"] = str(refused)[:120]
    return found
