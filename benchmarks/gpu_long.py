"""Two more attention parts of gpu_kernels.py: prompts, and what is cut by position alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_attention import BF16, CUDA, Line, lengths_of, milliseconds, paged_cache
from quire.backends.ops import AttentionInputs, HeadShape
from quire.backends.triton.decode import DecodeAttention, DecodeBuffers
from quire.backends.triton.kernels import TritonKernels
from quire.backends.triton.prefill import PrefillAttention
from quire.backends.triton.steady import SteadyBuffers, SteadyDecode, SteadyPrefill
from quire.backends.triton.tiles import steady_tiles

Slices = list[tuple[int, int]]  # tokens, and those before them
PASSES: tuple[Slices, ...] = (
    [(1024, 0)] * 16,
    [(100 + 160 * i, 0) for i in range(16)],
    [(400, 0)] * 40,
    [(98, 2000)] * 168,
    [(2048, 0)] * 8,
    [(2048, 2048)] * 8,
    [(4096, 0)] * 4,
    [(8192, 0)] * 2,
    [(16_384, 0)],
    [(16_384, 84_000)],
)


def prompts() -> Iterator[Line]:
    """TFLOP/s (causal half counted) of passes over prompts: by the kernel that serves here, and by
    Triton's."""
    for heads, width in ((32, 128), (16, 128), (32, 64)):
        shape = HeadShape(heads, 8, width, 16, BF16)
        for slices in PASSES:
            pairs = sum(new * past + new * (new + 1) / 2 for new, past in slices)
            name = f"{len(slices)} x {slices[0][0]}..{slices[-1][0]}+{slices[0][1]}"
            found: Line = {"prompts": f"{name} {heads}/8x{width}"}
            for kind, spent in _time_pass(shape, slices).items():
                found[kind] = round(4 * heads * width * pairs / spent / 1e9, 1)
            yield found


def _time_pass(shape: HeadShape, slices: Slices) -> dict[str, float]:
    """Milliseconds on the device."""
    new = torch.tensor([0, *(count for count, _ in slices)])
    lengths = torch.tensor([sum(one) for one in slices], dtype=torch.int32, device=CUDA)
    keys, values, tables = paged_cache(shape, lengths)
    starts = new.cumsum(0).to(CUDA)
    num_tokens = int(new.sum())
    inputs = AttentionInputs(starts, lengths, tables, starts, len(slices))
    q = torch.randn(num_tokens, shape.num_heads, shape.head_dim, device=CUDA, dtype=BF16)
    out = torch.empty(num_tokens, q[0].numel(), device=CUDA, dtype=BF16)
    served = TritonKernels(shape).prefill_attention(inputs, num_tokens, None)
    triton = PrefillAttention(shape, starts, lengths, tables, num_tokens)
    return {
        kind: _elapsed(partial(attention.attend, q, keys, values, out))
        for kind, attention in ((type(served).__name__, served), ("Triton", triton))
    }


def _elapsed(run: Callable[[], object], times: int = 5) -> float:
    run()
    torch.cuda.synchronize()
    event: Any = torch.cuda.Event
    first, last = (event(enable_timing=True) for _ in range(2))
    first.record()
    for _ in range(times):
        run()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last)) / times


def steady() -> Iterator[Line]:
    """Attention that gives a row the same bits in any batch, beside that which does not: TB/s of
    decode rows, TFLOP/s of prompts."""
    for heads, width in ((16, 128), (32, 128), (32, 64)):
        shape = HeadShape(heads, 8, width, 16, BF16)
        for rows, context in ((256, 1024), (1024, 768), (16, 1024), (4, 4096)):
            yield _steady_rows(shape, rows, context)
        for count, new, past in ((16, 1024, 0), (2, 8192, 0), (168, 98, 2000)):
            yield _steady_prompts(shape, count, new, past)


def _steady_rows(shape: HeadShape, rows: int, context: int) -> Line:
    lengths = lengths_of(rows, context, "uniform")
    keys, values, tables = paged_cache(shape, lengths)
    q = torch.randn(rows, shape.num_heads, shape.head_dim, device=CUDA, dtype=BF16)
    plain = DecodeAttention(shape, DecodeBuffers.make(shape, rows, CUDA), rows)
    room = SteadyBuffers.make(shape, rows, int(lengths.max()), CUDA)
    size = int(lengths.sum()) * shape.num_kv_heads * shape.head_dim * 2 * BF16.itemsize
    found: Line = {"steady": f"{rows} x {context} {shape.num_heads}/8x{shape.head_dim}"}
    both: tuple[tuple[str, Any], ...] = (
        ("usual TB/s", plain),
        ("steady TB/s", SteadyDecode(shape, room, rows)),
    )
    for name, attention in both:
        attention.plan(lengths, tables)
        spent = milliseconds(lambda one=attention: one.attend(q, keys, values))  # type: ignore[misc]
        found[name] = round(size / spent / 1e9, 3)
    return found


def _steady_prompts(shape: HeadShape, count: int, new: int, past: int) -> Line:
    lengths = torch.full((count,), new + past, dtype=torch.int32, device=CUDA)
    keys, values, tables = paged_cache(shape, lengths)
    starts = torch.arange(count + 1, device=CUDA) * new
    q = torch.randn(count * new, shape.num_heads, shape.head_dim, device=CUDA, dtype=BF16)
    out: Tensor = torch.empty(count * new, q[0].numel(), device=CUDA, dtype=BF16)
    given = (shape, starts, lengths, tables, count * new)
    flops = 4 * count * shape.num_heads * shape.head_dim * (new * past + new * new / 2)
    found: Line = {"steady": f"{count} x {new}+{past} {shape.num_heads}/8x{shape.head_dim}"}
    both = (
        ("usual TFLOP/s", PrefillAttention(*given)),
        ("steady TFLOP/s", SteadyPrefill(*given, tile=steady_tiles(shape)[1])),
    )
    for name, attention in both:
        spent = milliseconds(lambda one=attention: one.attend(q, keys, values, out))  # type: ignore[misc]
        found[name] = round(flops / spent / 1e9, 1)
    return found
