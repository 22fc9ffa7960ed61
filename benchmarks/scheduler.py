"""What planning costs: schedule + commit of many decode rows, without a model.

    python benchmarks/scheduler.py --rows 2000

The executor is a fake that answers at once, so all the time is the host's. Rows stand at
different places in their blocks, as they do in a run.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

if not __package__:  # run as a file: the repository is not on the path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from quire.cache.pool import BlockPool
from quire.request import Request
from quire.sampling_params import SamplingParams
from quire.scheduler.limits import Limits
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.sequence import Sequence
from quire.step import StepPlan, StepResult

PROMPT, BLOCK_SIZE = 32, 16


@dataclass(frozen=True)
class Cost:
    """Milliseconds per decode step."""

    rows: int
    steps: int
    schedule_ms: float
    commit_ms: float
    total_p50_ms: float
    total_p99_ms: float

    def __str__(self) -> str:
        return (
            f"{self.rows:,} rows: {self.total_p50_ms:.3f} ms per step "
            f"(schedule {self.schedule_ms:.3f}, commit {self.commit_ms:.3f}, "
            f"99 % under {self.total_p99_ms:.3f}; medians of {self.steps} steps)"
        )


def answer(plan: StepPlan) -> StepResult:
    """A token for every row that draws one."""
    num_rows = len(plan.sampled_rows())
    tokens = np.full((num_rows, plan.repeat), 7, np.int32)
    return StepResult(tokens, np.full(num_rows, plan.repeat, np.int32))


def filled(rows: int, steps: int) -> Scheduler:
    """A scheduler in which `rows` sequences write, with more than `steps` tokens to go."""
    length = PROMPT + BLOCK_SIZE + steps + 64
    pool = BlockPool(rows * (length // BLOCK_SIZE + 1), block_size=BLOCK_SIZE)
    budget = max(rows, 8192) + PROMPT
    scheduler = Scheduler(pool, Limits(rows, budget, max_repeat=1))
    params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=length)
    rng = np.random.default_rng(0)
    for i in range(rows):
        size = PROMPT + i % BLOCK_SIZE
        prompt = rng.integers(10, 10_000, size).astype(np.int32)
        # eos ids as in a run where answers may stop: they are compared at each commit.
        request = Request(i, prompt, params, length - size, i, eos_ids=frozenset({2}))
        scheduler.add([Sequence(request, order=i)])
    while True:
        plan = scheduler.schedule()
        if plan is None:
            raise RuntimeError("the rows do not fit")
        scheduler.commit(answer(plan))
        if len(plan.decode) == rows:
            return scheduler


def measure(rows: int = 2000, steps: int = 200) -> Cost:
    """Median cost of `steps` steps in which all rows decode."""
    scheduler = filled(rows, steps)
    planning, digesting = np.zeros(steps), np.zeros(steps)
    for step in range(steps):
        started = time.perf_counter()
        plan = scheduler.schedule()
        planned = time.perf_counter()
        if plan is None or len(plan.decode) != rows:
            raise RuntimeError(f"step {step} does not decode all {rows} rows")
        result = answer(plan)
        answered = time.perf_counter()
        scheduler.commit(result)
        planning[step] = planned - started
        digesting[step] = time.perf_counter() - answered
    total = 1e3 * (planning + digesting)
    return Cost(
        rows=rows,
        steps=steps,
        schedule_ms=float(np.median(1e3 * planning)),
        commit_ms=float(np.median(1e3 * digesting)),
        total_p50_ms=float(np.median(total)),
        total_p99_ms=float(np.percentile(total, 99)),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="schedule + commit of decode rows")
    parser.add_argument("--rows", type=int, nargs="+", default=[2000])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--json", type=Path, metavar="PATH")
    arguments = parser.parse_args()
    costs = [measure(rows, arguments.steps) for rows in arguments.rows]
    for cost in costs:
        print(cost)
    if arguments.json:
        found = [{name: getattr(c, name) for name in c.__dataclass_fields__} for c in costs]
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
