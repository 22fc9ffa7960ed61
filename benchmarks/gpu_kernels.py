"""How fast the kernels of one GPU are; tests/backends/triton checks that they are right.

python benchmarks/gpu_kernels.py prompts steady --out results --seconds 600

decode_sweep  which tile attention of decode rows has; the table behind tiles.py
decode        what it reads a second, beside a copy
small         what happens once per step, and elementwise kernels
sampling      drawing one token per line
prefix        attention to prefixes that rows share
prefill       attention over prompts by Triton's tiles, beside what torch has
prompts       attention over prompts by the kernel that serves here, beside Triton's
steady        attention that gives a row the same bits in any batch, beside that which does not
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

if not __package__:  # run as a file: the repository is not on the path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.gpu_attention import (
    BF16,
    CUDA,
    decode,
    decode_sweep,
    lengths_of,
    milliseconds,
    paged_cache,
    prefill,
    prefix,
)
from benchmarks.harness import Line, Parts, main_of_parts
from quire.backends.ops import AttentionInputs, HeadNorms, HeadShape
from quire.backends.triton import blocks, elementwise
from quire.backends.triton.decode import DecodeAttention, DecodeBuffers
from quire.backends.triton.heads import norm_rope_store
from quire.backends.triton.kernels import TritonKernels
from quire.backends.triton.prefill import PrefillAttention
from quire.backends.triton.sample import SampleBuffers, SamplingColumns, sample
from quire.backends.triton.steady import SteadyBuffers, SteadyDecode, SteadyPrefill
from quire.backends.triton.tiles import steady_tiles


def small() -> Iterator[Line]:
    """What happens once per step or is small: microseconds."""
    shape = HeadShape(16, 8, 128, 16, BF16)
    for rows in (256, 1024, 2048):
        lengths = lengths_of(rows, 512, "uniform")
        tables = torch.zeros(rows, 64, dtype=torch.int32, device=CUDA)
        buffers = DecodeBuffers.make(shape, rows, CUDA)
        attention = DecodeAttention(shape, buffers, rows)
        spent = milliseconds(partial(attention.plan, lengths, tables))
        yield {"small": f"plan {rows} rows", "us": round(spent * 1e3, 2)}
    for tokens in (256, 1024, 16384):
        yield from _elementwise(shape, tokens)
    cache = torch.randn(28, 2, 512, 8, 16, 128, device=CUDA, dtype=BF16)
    pairs = torch.arange(256, dtype=torch.int32, device=CUDA).view(128, 2)
    spent = milliseconds(lambda: blocks.copy_blocks(cache, pairs))
    moved = 2 * 128 * cache[:, :, 0].nbytes
    yield {
        "small": "copy 128 blocks",
        "us": round(spent * 1e3, 2),
        "TB/s": round(moved / spent / 1e9, 3),
    }


def _elementwise(shape: HeadShape, tokens: int) -> Iterator[Line]:
    hidden, inner = 1024, 3072
    x, residual = (torch.randn(tokens, hidden, device=CUDA, dtype=BF16) for _ in range(2))
    weight = torch.randn(hidden, device=CUDA, dtype=BF16)
    gate_up = torch.randn(tokens, 2 * inner, device=CUDA, dtype=BF16)
    qkv = torch.randn(tokens, 32, 128, device=CUDA, dtype=BF16)
    angles = torch.randn(tokens, 64, device=CUDA)
    cos, sin = angles.cos(), angles.sin()
    keys, values = torch.randn(2, tokens // 16 + 1, 8, 16, 128, device=CUDA, dtype=BF16)
    slots = torch.randperm(tokens, device=CUDA)
    norms = HeadNorms(weight[:128].contiguous(), weight[128:256].contiguous(), 1e-6)
    for name, run, num_bytes in (
        ("rms_norm", lambda: elementwise.rms_norm(x, weight, 1e-6), 2 * x.nbytes),
        ("add_rms_norm", lambda: elementwise.add_rms_norm(x, residual, weight, 1e-6), 4 * x.nbytes),
        ("silu_mul", lambda: elementwise.gate_mul(gate_up), 3 * gate_up.nbytes // 2),
        (
            "norm_rope_store",
            lambda: norm_rope_store(qkv, cos, sin, slots, keys, values, shape, norms),
            2 * qkv.nbytes + cos.nbytes * 2,
        ),
    ):
        spent = milliseconds(run)
        speed = num_bytes / spent / 1e9
        yield {"small": f"{name} {tokens}", "us": round(spent * 1e3, 2), "TB/s": round(speed, 3)}


def sampling() -> Iterator[Line]:
    """Microseconds to draw one token per line."""
    for lines, vocab in ((256, 151_936), (1024, 151_936), (8, 151_936)):
        for spread in (1.0, 3.0):
            logits = (torch.randn(lines, vocab, device=CUDA) * spread).to(BF16)
            out = SampleBuffers(lines, vocab, CUDA)
            rows = torch.arange(lines, dtype=torch.int32, device=CUDA)
            columns = SamplingColumns.greedy(lines, CUDA)
            found: Line = {"sampling": f"{lines} x {vocab}, logits x {spread}"}
            found["argmax us"] = round(milliseconds(partial(logits.argmax, 1)) * 1e3, 1)

            def run(
                truncated: bool,
                x: Tensor = logits,
                o: Any = out,
                r: Tensor = rows,
                c: Any = columns,
            ) -> None:
                sample(x, r, r, c, o, truncated=truncated)

            found["greedy us"] = round(milliseconds(lambda: run(False)) * 1e3, 1)
            columns.temperature.fill_(0.8)
            found["noise us"] = round(milliseconds(lambda: run(False)) * 1e3, 1)
            columns.top_k.fill_(50)
            found["top_k us"] = round(milliseconds(lambda: run(True)) * 1e3, 1)
            columns.top_p.fill_(0.95)
            found["top_k, top_p us"] = round(milliseconds(lambda: run(True)) * 1e3, 1)
            columns.top_k.fill_(0)
            found["top_p us"] = round(milliseconds(lambda: run(True)) * 1e3, 1)
            yield found


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


_ALL = (decode_sweep, decode, small, sampling, prefix, prefill, prompts, steady)
PARTS: Parts = {part.__name__: part for part in _ALL}

if __name__ == "__main__":
    main_of_parts(__doc__, PARTS, "kernels", seconds=600.0)
