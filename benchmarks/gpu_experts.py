"""One layer's experts on a GPU: microseconds against the reading of their weights.

    python benchmarks/gpu_experts.py                 # the shape of Qwen3-30B-A3B
    python benchmarks/gpu_experts.py --sweep         # other tiles, to choose from
    python benchmarks/gpu_experts.py --experts 8 --per-token 2 --inner 14336 --hidden 4096

`limit` is the longer of reading the weights of the experts that are taken (4.3 TB/s) and
multiplying (660 TFLOP/s); `grouped` are torch's grouped products around the same gate.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable

import torch
import triton
from torch import Tensor

from quire.backends.experts import GroupedExperts
from quire.backends.ops import HeadShape
from quire.backends.triton.elementwise import gate_mul
from quire.backends.triton.experts import ExpertWeights, FusedExperts, Tile, tile_for
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
        for tokens in given.tokens:
            measure(router, ups, downs, tokens, sweep=given.sweep)


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
