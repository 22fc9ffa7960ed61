"""How near to memory bandwidth a plain Triton paged decode kernel gets, by block size, tile and
splits. A probe that needs a GPU, not the product.

    python benchmarks/decode_probe.py
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

LOG2_E = 1.44269504


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def decode(  # type: ignore[no-untyped-def]
    Q,
    K,
    V,
    TABLE,
    LENGTHS,
    OUT,
    PEAK,
    SUM,
    stride_table,
    scale,
    HKV: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    BS: tl.constexpr,
    BN: tl.constexpr,
    SPLIT: tl.constexpr,
    M: tl.constexpr,
):
    """One program: one sequence, one KV head, one split of its context."""
    b, h, s = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(LENGTHS + b)
    per = tl.cdiv(tl.cdiv(length, SPLIT), BN) * BN
    low = s * per
    high = tl.minimum(low + per, length)
    peak = tl.full([M], -1e30, tl.float32)
    total = tl.zeros([M], tl.float32)
    out = tl.zeros([M, D], tl.float32)
    rm, rd, rn = tl.arange(0, M), tl.arange(0, D), tl.arange(0, BN)
    rows = (b * HKV * G + h * G + rm)[:, None]
    q = tl.load(Q + rows * D + rd[None, :], mask=(rm < G)[:, None], other=0.0)
    for n in range(low, high, BN):
        at = n + rn
        real = at < high
        block = tl.load(TABLE + b * stride_table + at // BS, mask=real, other=0)
        slot = (block.to(tl.int64) * HKV + h) * BS + at % BS
        k = tl.load(K + slot[None, :] * D + rd[:, None], mask=real[None, :], other=0.0)
        scores = tl.where(real[None, :], tl.dot(q, k) * scale, -1e30)
        new_peak = tl.maximum(peak, tl.max(scores, 1))
        p = tl.exp2(scores - new_peak[:, None])
        shrink = tl.exp2(peak - new_peak)
        total = total * shrink + tl.sum(p, 1)
        v = tl.load(V + slot[:, None] * D + rd[None, :], mask=real[:, None], other=0.0)
        out = out * shrink[:, None] + tl.dot(p.to(v.dtype), v)
        peak = new_peak
    o = ((b * HKV + h) * SPLIT + s) * G + rm
    tl.store(OUT + o[:, None] * D + rd[None, :], out, mask=(rm < G)[:, None])
    tl.store(PEAK + o, peak, mask=rm < G)
    tl.store(SUM + o, total, mask=rm < G)


@dataclass(frozen=True)
class Case:
    """What is decoded: `batch` sequences of `context` tokens (on average, if ragged)."""

    batch: int
    context: int
    kv_heads: int
    group: int  # query heads per KV head
    head_dim: int
    ragged: bool

    def lengths(self) -> torch.Tensor:
        if not self.ragged:
            return torch.full((self.batch,), self.context, device="cuda")
        low, high = self.context // 8, 2 * self.context - self.context // 8
        return torch.randint(low, high, (self.batch,), device="cuda")


@dataclass(frozen=True)
class Tuning:
    """How the kernel is cut."""

    block_size: int
    tile: int
    splits: int
    warps: int
    stages: int


def _tables(lengths: torch.Tensor, block_size: int) -> tuple[torch.Tensor, int]:
    """A block table with the blocks of all sequences scattered over the pool, and their number."""
    counts = ((lengths + block_size - 1) // block_size).tolist()
    ids = torch.randperm(sum(counts), device="cuda", dtype=torch.int32)
    table = torch.zeros(len(counts), max(counts), dtype=torch.int32, device="cuda")
    first = 0
    for row, count in enumerate(counts):
        table[row, :count] = ids[first : first + count]
        first += count
    return table, sum(counts)


def run(case: Case, tuning: Tuning) -> float:
    """TB/s of KV read."""
    torch.manual_seed(0)
    lengths = case.lengths()
    table, num_blocks = _tables(lengths, tuning.block_size)
    shape = (num_blocks, case.kv_heads, tuning.block_size, case.head_dim)
    k = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    v = torch.randn_like(k)
    heads = case.kv_heads * case.group
    q = torch.randn(case.batch, heads, case.head_dim, device="cuda", dtype=torch.bfloat16)
    partials = case.batch * heads * tuning.splits
    out = torch.empty(partials, case.head_dim, device="cuda")
    peak = torch.empty(partials, device="cuda")
    total = torch.empty_like(peak)
    lengths32 = lengths.int()
    scale = case.head_dim**-0.5 * LOG2_E
    grid = (case.batch, case.kv_heads, tuning.splits)

    def launch() -> Any:
        return decode[grid](
            *(q, k, v, table, lengths32, out, peak, total, table.stride(0), scale),
            *(case.kv_heads, case.group, case.head_dim),
            *(tuning.block_size, tuning.tile, tuning.splits, 16),
            num_warps=tuning.warps,
            num_stages=tuning.stages,
        )

    launch()
    milliseconds = triton.testing.do_bench(launch, warmup=20, rep=80, return_mode="median")
    gigabytes = int(lengths.sum()) * case.kv_heads * case.head_dim * 2 * 2 / 1e9
    return float(gigabytes / milliseconds)


def tunings(block_size: int) -> list[Tuning]:
    return [
        Tuning(block_size, tile, splits, warps, stages)
        for tile in (64, 128)
        for splits in (1, 2, 4)
        for warps, stages in ((4, 2), (4, 3), (2, 3))
    ]


def main() -> None:
    shapes = (
        (256, 1024, 8, 2, 128),
        (256, 1024, 8, 4, 128),
        (256, 1024, 8, 4, 64),
        (1024, 768, 8, 2, 128),
        (64, 2048, 8, 4, 128),
    )
    for shape in shapes:
        for ragged in (False, True):
            case = Case(*shape, ragged=ragged)
            for block_size in (16, 64, 256):
                found: list[tuple[float, Tuning]] = []
                for tuning in tunings(block_size):
                    try:
                        found.append((run(case, tuning), tuning))
                    except triton.runtime.errors.OutOfResources:
                        continue  # this cut does not fit the chip
                found.sort(key=lambda x: -x[0])
                best = ", ".join(f"{rate:.2f} TB/s {tuning}" for rate, tuning in found[:2])
                print(case, best, flush=True)


if __name__ == "__main__":
    main()
