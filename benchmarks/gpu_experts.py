"""One layer's experts on a GPU: microseconds against the reading of their weights.

    python benchmarks/gpu_experts.py                 # the shape of Qwen3-30B-A3B
    python benchmarks/gpu_experts.py --sweep         # other tiles, to choose from
    python benchmarks/gpu_experts.py --experts 8 --per-token 2 --inner 14336 --hidden 4096
    python benchmarks/gpu_experts.py --kept mxfp4    # or int4, fp8: weights that stay quantised

`limit` is the longer of reading the weights of the experts that are taken (4.3 TB/s) and
multiplying (660 TFLOP/s); `grouped` are torch's grouped products around the same gate.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from functools import partial

import torch
import triton
from torch import Tensor

from quire.backends.experts import GroupedExperts
from quire.backends.fp8 import FP8
from quire.backends.ops import HeadShape
from quire.backends.quantised.fp8_matrix import Fp8Matrix
from quire.backends.quantised.grouped import FP4, GroupedMatrix
from quire.backends.triton.coded_experts import CodedExperts
from quire.backends.triton.elementwise import gate_mul
from quire.backends.triton.experts import (
    ExpertProduct,
    ExpertWeights,
    FusedExperts,
    Tile,
    all_tiles,
    tile_for,
)
from quire.backends.triton.fp8_experts import Fp8Experts
from quire.backends.triton.kernels import TritonKernels
from quire.layer_plan import ExpertsPlan, MlpPlan
from quire.layers.experts import Router
from quire.layers.linear import Linear

BYTES_A_SECOND, FLOPS = 4.3e12, 660e12
TOKENS = (1, 4, 16, 64, 256, 512, 1024, 4096, 16384)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--experts", type=int, default=128)
    parser.add_argument("--per-token", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--inner", type=int, default=768)
    parser.add_argument("--tokens", type=int, nargs="*", default=TOKENS)
    parser.add_argument("--sweep", action="store_true", help="the best of other tiles, too")
    parser.add_argument("--kept", choices=tuple(KEPT), help="beside weights in this form")
    given = parser.parse_args()
    torch.manual_seed(0)
    e, h, i = given.experts, given.hidden, given.inner
    ups = torch.randn(e, 2 * i, h, device="cuda", dtype=torch.bfloat16) / h**0.5
    downs = torch.randn(e, h, i, device="cuda", dtype=torch.bfloat16) / i**0.5
    kernels = TritonKernels(HeadShape(1, 1, 64, 16, torch.bfloat16))
    product = Linear(kernels, torch.randn(e, h, device="cuda"))
    plan = ExpertsPlan(e, given.per_token, MlpPlan(i))
    router = Router(product, kernels.make_choice(plan, None))
    with torch.inference_mode():
        kept = KEPT[given.kept](ups, downs) if given.kept else None
        for tokens in given.tokens:
            if kept is None:
                measure(router, ups, downs, tokens, sweep=given.sweep)
            else:
                beside_plain(router, ups, downs, kept, tokens)


def in_fp8(*sides: Tensor) -> list[ExpertProduct]:
    """With a scale for each block of 128 by 128."""
    made: list[ExpertProduct] = []
    for weights in sides:
        experts, lines, columns = weights.shape
        scales = torch.full((-(-lines // 128), -(-columns // 128)), 2.0**-8, device="cuda")
        matrices = [Fp8Matrix((one * 256).to(FP8), scales, 128, 128) for one in weights]
        kept = Fp8Experts.of(matrices, weights.dtype)
        assert kept is not None and kept.count == experts
        made.append(kept)
    return made


def in_codes(*sides: Tensor, floats: bool) -> list[ExpertProduct]:
    """Random codes: floats in groups of 32, or whole numbers with zero points in groups of 128."""
    group = 32 if floats else 128
    made: list[ExpertProduct] = []
    for weights in sides:
        experts, lines, columns = weights.shape
        matrices = []
        for _ in range(experts):
            size = (lines, columns // 4)
            ends = (-(1 << 15), 1 << 15)
            codes = torch.randint(*ends, size, dtype=torch.int16, device="cuda")
            scales = torch.full((lines, columns // group), 2.0**-8, device="cuda")
            if floats:
                table = torch.tensor(FP4, device="cuda")
                matrices.append(GroupedMatrix(4, codes, scales, table=table))
            else:
                zeros = torch.full_like(scales, 8, dtype=torch.uint8)
                matrices.append(GroupedMatrix(4, codes, scales, zeros=zeros))
        kept = CodedExperts.of(matrices, weights.dtype)
        assert kept is not None
        made.append(kept)
    return made


KEPT: dict[str, Callable[[Tensor, Tensor], list[ExpertProduct]]] = {
    "mxfp4": partial(in_codes, floats=True),
    "int4": partial(in_codes, floats=False),
    "fp8": in_fp8,
}


def beside_plain(
    router: Router, ups: Tensor, downs: Tensor, kept: list[ExpertProduct], tokens: int
) -> None:
    """Microseconds of plain and kept experts, and of kept ones with tiles of other heights."""
    x = torch.randn(tokens, ups.shape[2], device="cuda", dtype=torch.bfloat16)
    chosen, scores = router(x)
    plain = FusedExperts(gate_mul, ExpertWeights(ups), ExpertWeights(downs))
    mine, pairs = FusedExperts(gate_mul, *kept), chosen.numel()
    chosen_tile = tile_for(pairs, len(ups), x.dtype)
    others = {}
    for tile in all_tiles(ExpertsPlan(len(ups), chosen.shape[1], MlpPlan(1)), x.dtype):
        if pairs / len(ups) <= 4 * tile.rows or tile.rows == 128:
            fused = FusedExperts(gate_mul, *kept, tile=tile)
            others[tile.rows] = round(timed(lambda: fused(x, chosen, scores)), 1)  # noqa: B023
    print(
        f"{tokens:6} tokens  {pairs / len(ups):7.1f} pairs to an expert  plain "
        f"{timed(lambda: plain(x, chosen, scores)):8.1f}  kept "
        f"{timed(lambda: mine(x, chosen, scores)):8.1f} ({chosen_tile.rows})  by height {others}",
        flush=True,
    )


def measure(router: Router, ups: Tensor, downs: Tensor, tokens: int, *, sweep: bool) -> None:
    x = torch.randn(tokens, ups.shape[2], device="cuda", dtype=torch.bfloat16)
    chosen, scores = router(x)
    weights = ExpertWeights(ups), ExpertWeights(downs)
    fused, grouped = FusedExperts(gate_mul, *weights), GroupedExperts(gate_mul, ups, downs)
    made, wanted = fused(x, chosen, scores).float(), grouped(x, chosen, scores).float()
    away = float((made - wanted).abs().max() / wanted.abs().max())
    per_expert = (ups[0].numel() + downs[0].numel()) * 2
    taken, pairs = len(set(chosen.flatten().tolist())), chosen.numel()
    limit = max(taken * per_expert / BYTES_A_SECOND, pairs * per_expert / FLOPS) * 1e6
    ours = timed(lambda: fused(x, chosen, scores))
    tile = tile_for(pairs, len(ups), x.dtype)
    line = (
        f"{tokens:6} tokens  {taken:4} experts  limit {limit:8.1f}  fused {ours:8.1f} "
        f"({100 * limit / ours:3.0f} %)  grouped {timed(lambda: grouped(x, chosen, scores)):8.1f}  "
        f"router {timed(lambda: router(x)):6.1f}  off {away:.4f}  {tile}"
    )
    print(line, flush=True)
    if sweep:
        found = sorted(swept(x, chosen, scores, weights, tile), key=lambda one: one[0])
        for micros, other in found[:4]:
            print(f"      {micros:8.1f}  {other}", flush=True)


def swept(
    x: Tensor,
    chosen: Tensor,
    scores: Tensor,
    weights: tuple[ExpertWeights, ExpertWeights],
    near: Tile,
) -> list[tuple[float, Tile]]:
    """Tiles of the same or neighbouring heights, of which some do not fit."""
    rows = {near.rows, min(128, near.rows * 2)}
    found = []
    for height, columns, depth, stages in itertools.product(
        rows, (64, 128, 256), (64, 128), (3, 4)
    ):
        memory = (height + columns) * depth * 2 * stages
        if memory > 220 << 10 or height * columns > 1 << 15 or memory < 48 << 10:
            continue
        tile = Tile(height, columns, depth, 8 if height * columns >= 1 << 14 else 4, stages)
        fused = FusedExperts(gate_mul, *weights, tile=tile)
        found.append((timed(lambda: fused(x, chosen, scores)), tile))  # noqa: B023
    return found


def timed(call: Callable[[], object]) -> float:
    """Microseconds of a captured call."""
    return 1000 * float(triton.testing.do_bench_cudagraph(call, rep=20, return_mode="median"))


if __name__ == "__main__":
    main()
