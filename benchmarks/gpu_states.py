"""What layers that keep a state take on a GPU between their products: microseconds of one layer.

    python benchmarks/gpu_states.py             # shapes of published models
    python benchmarks/gpu_states.py --sweep     # other ways to cut the work, to choose from

`limit` is what reading and writing the states takes at 4.3 TB/s, with the tokens' own numbers as
float32. `off` is how far prompts in chunks are from one token after the other, of the largest.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import triton
from torch import Tensor

from quire.backends.ops import StateHeads, StateRule
from quire.backends.states import half_of
from quire.backends.triton import states
from quire.backends.triton.states import SlicesStates, TritonStates
from quire.layer_parts.norm import NormPlan
from quire.layer_parts.state import DeltaNetPlan, MambaPlan

BYTES_A_SECOND = 4.3e12
NORM = NormPlan(1e-6)
PLANS: dict[str, DeltaNetPlan | MambaPlan] = {
    "Qwen3-Next, Qwen3.5 4B": DeltaNetPlan(32, 16, 128, 128, 4, NORM),
    "Nemotron-H 8B": MambaPlan(128, 8, 128, 64, 4, NORM),
    "Granite 4 tiny": MambaPlan(48, 1, 128, 64, 4, NORM),
    "Falcon-H1 34B": MambaPlan(32, 2, 256, 128, 4, None),
}
ROWS = (1, 16, 64, 256)
SLICES = ((16384,), (2048,), (964,) * 17, (256,) * 64, (16,) * 1024, (5,) * 1024)
BLOCK = 1152


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sweep", action="store_true", help="the best of other cuts, too")
    given = parser.parse_args()
    torch.manual_seed(0)
    with torch.inference_mode():
        for name, plan in PLANS.items():
            print(name, flush=True)
            for rows in ROWS:
                decode(plan, rows, sweep=given.sweep)
            for slices in SLICES:
                prompts(plan, slices, sweep=given.sweep)


def decode(plan: DeltaNetPlan | MambaPlan, rows: int, *, sweep: bool) -> None:
    """One token of each row."""
    starts = torch.arange(rows + 1, dtype=torch.int32, device="cuda")
    tables = torch.arange(1, rows + 1, dtype=torch.int32, device="cuda")[:, None]
    step = TritonStates(starts, torch.full_like(starts[1:], 700), tables, BLOCK)
    work = partial_of(plan, rows, rows + 1)
    moved = rows * (8 * plan.state_numbers + 4 * (plan.channels * 3 + 2 * plan.value_width))
    limit, took = moved / BYTES_A_SECOND * 1e6, timed(lambda: work(step))
    print(
        f"  {rows:5} rows     {took:9.1f} us, limit {limit:9.1f} ({limit / took:4.0%})", flush=True
    )
    if sweep:
        cuts = itertools.product((16, 32, 64, 128), (1, 2, 4, 8))
        for columns, warps in cuts:
            made = {"COLUMNS": min(columns, plan.value_dim), "num_warps": warps}
            with replaced("token_constants", lambda plan, made=made: made):
                print(f"        {made}: {timed(lambda: work(step)):9.1f}", flush=True)


def prompts(plan: DeltaNetPlan | MambaPlan, slices: Sequence[int], *, sweep: bool) -> None:
    count, blocks = sum(slices), [-(-one // BLOCK) for one in slices]
    starts = torch.tensor([0, *itertools.accumulate(slices)], device="cuda")
    tables = torch.zeros(len(slices), max(blocks), dtype=torch.int32, device="cuda")
    at = 1
    for line, size in zip(tables, blocks, strict=True):
        line[:size] = torch.arange(at, at + size)
        at += size
    given = starts, starts.diff(), tables, BLOCK
    work = partial_of(plan, count, at)

    def step(**how: Any) -> SlicesStates:
        return SlicesStates(*given, num_tokens=count, **how)

    moved = 4 * len(slices) * plan.state_numbers + 4 * count * (
        plan.channels * 4 + plan.value_width
    )
    limit, took = moved / BYTES_A_SECOND * 1e6, timed(lambda: work(step()))
    wanted, made = work(step(one_by_one=True)), work(step())
    away = float((made - wanted).abs().max() / wanted.abs().max())
    alone = timed(lambda: work(step(one_by_one=True)))
    print(
        f"  {len(slices):5} x {slices[0]:5} {took:9.1f} us, limit {limit:9.1f} "
        f"({limit / took:4.0%}), one by one {alone:9.1f}, off {away:.1e}",
        flush=True,
    )
    if sweep:
        before = states.chunk_constants
        for columns, warps, stages in itertools.product((16, 32, 64), (4, 8), (1, 2)):
            more = {"COLUMNS": columns, "num_warps": warps, "num_stages": stages}

            def cut(*given: Any, more: dict[str, int] = more) -> dict[str, Any]:
                return {**before(*given), **more}

            with replaced("chunk_constants", cut):
                try:
                    took = timed(lambda: work(step()))
                except triton.runtime.errors.OutOfResources as error:
                    print(f"        {more}: {error}")
                    continue
                print(f"        {more}: {took:9.1f}", flush=True)


def partial_of(
    plan: DeltaNetPlan | MambaPlan, count: int, blocks: int
) -> Callable[[TritonStates], Tensor]:
    """What takes up so many random tokens."""

    def some(*shape: int) -> Tensor:
        return torch.randn(*shape, device="cuda")

    is_mamba = isinstance(plan, MambaPlan)
    heads = StateHeads(*(some(plan.num_heads) for _ in range(3 if is_mamba else 2)))
    rule = StateRule(plan, some(plan.channels, plan.reach), None, heads)
    x = some(count, plan.channels + plan.value_width).bfloat16()[:, : plan.channels]
    rates = some(count, plan.num_heads * (1 if is_mamba else 2))
    room = -(-half_of(plan.state_numbers) * 2 // BLOCK // 8) * 8
    cache = torch.zeros(2, blocks, 1, BLOCK, room, device="cuda", dtype=torch.bfloat16)
    return lambda step: step.take_up(rule, x, rates, *cache)


@contextmanager
def replaced(name: str, by: Callable[..., Any]) -> Iterator[None]:
    before = getattr(states, name)
    setattr(states, name, by)
    try:
        yield
    finally:
        setattr(states, name, before)


def timed(work: Callable[[], object]) -> float:
    """Microseconds, the median of many."""
    return float(triton.testing.do_bench(work, warmup=10, rep=60, return_mode="median")) * 1e3


if __name__ == "__main__":
    main()
