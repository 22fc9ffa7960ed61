"""What a run will take: steps, blocks and seconds, before it is run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quire.cache.groups import Windows
from quire.config import EngineConfig
from quire.plan.footprint import Counted
from quire.plan.prefixes import SharedPrefix
from quire.plan.simulation import Simulation
from quire.plan.times import StepTimes
from quire.request import Ints, Request
from quire.spec import AnySpec


@dataclass(frozen=True, slots=True)
class RunEstimate:
    """A run, foretold. `not_fitting` counts requests larger than the whole pool; where
    `preemptions_likely`, rows grow into the last block and one may have to give way."""

    steps: int
    seconds: float
    peak_blocks: int
    num_blocks: int
    peak_rows: int
    computed_tokens: int  # prompt tokens not cached, and every output token fed back
    sampled_tokens: int
    context: int  # attended positions, summed over the computed tokens
    flops: int
    not_fitting: int
    preemptions_likely: bool
    times: str  # where the seconds come from


def estimate_run(
    requests_in_order: Sequence[Request],
    cached_tokens: Sequence[int] | Ints,
    expected_outputs: Sequence[float],
    groups: Sequence[SharedPrefix],
    *,
    config: EngineConfig,
    num_blocks: int,
    windows: Windows,
    times: StepTimes,
    spec: AnySpec,
) -> RunEstimate:
    """Foretell the run of these requests, admitted in this order.

    `cached_tokens` and `expected_outputs` belong to `requests_in_order`, and so do the members
    of `groups`: the blocks a group shares are counted once.
    """
    simulated = [
        Counted(
            prompt=r.num_prompt,
            cached=int(cached),
            outputs=min(r.max_tokens, max(1, round(outputs))),
            samples=r.params.n,
        )
        for r, cached, outputs in zip(
            requests_in_order, cached_tokens, expected_outputs, strict=True
        )
    ]
    run = Simulation(
        block_size=config.block_size,
        num_blocks=num_blocks,
        num_rows=min(config.max_num_seqs, config.max_num_batched_tokens),
        budget=config.max_num_batched_tokens,
        lag=config.depth - 1,  # a row that ends is free when the plans behind it are home
        caching=config.enable_prefix_caching,
        windows=windows,
    )
    run.play(simulated, groups)
    flops = spec.flops(tokens=run.tokens, context=run.attended, sampled=run.sampled)
    seconds = times.cost.seconds(
        steps=run.steps, tokens=run.tokens, sampled=run.sampled, context=run.attended
    )
    return RunEstimate(
        steps=run.steps,
        seconds=seconds,
        peak_blocks=min(run.peak, num_blocks),
        num_blocks=num_blocks,
        peak_rows=run.peak_rows,
        computed_tokens=run.tokens,
        sampled_tokens=run.sampled,
        context=run.attended,
        flops=flops,
        not_fitting=run.not_fitting,
        preemptions_likely=run.peak > num_blocks,
        times=times.describe(),
    )
