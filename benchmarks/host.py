"""What a call costs the host: checking prompts, planning, scheduling, making outputs.

    python benchmarks/host.py fewshot subjects --runs 3

The executor is a fake that answers at once, with the limits of a large GPU, so all the time is
the host's. Seconds of the processor, so that what else runs on the machine counts for little.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np

if not __package__:  # run as a file: the repository is not on the path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import shapes, workloads
from quire.executor.executor import ExecutorFacts
from quire.llm import LLM
from quire.options import DeviceFacts, parse_options, resolve
from quire.session.loaded_model import LoadedModel
from quire.session.session import Session
from quire.step import StepPlan, StepResult
from quire.steps.handles import Handles
from quire.weights.source import locate

GPU = DeviceFacts("cuda", 140 << 30, 120 << 30, 16, ("bfloat16",))
NUM_BLOCKS = 70_000


@dataclass(frozen=True, slots=True)
class Done:
    """A result that is ready at once."""

    value: StepResult

    def result(self) -> StepResult:
        return self.value


@dataclass(slots=True)
class Instant:
    """An executor that computes nothing and returns token 7 for every row."""

    first: float = 0.0  # when the first plan came
    handles: Handles = field(default_factory=Handles)

    def start(self) -> ExecutorFacts:
        return ExecutorFacts(NUM_BLOCKS, "cuda:0", "bfloat16")

    def submit(self, plan: StepPlan) -> Done:
        self.first = self.first or time.thread_time()
        count = len(plan.sampled_rows())
        tokens = np.full((count, plan.repeat), 7, np.int32)
        return Done(StepResult(tokens, np.full(count, plan.repeat, np.int32)))

    def reset(self) -> None: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class HostTime:
    """Seconds of one call."""

    rows: int
    tokens: int
    whole: float = 0.0
    before: float = 0.0  # until the first plan was made
    parts: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {1e3 * spent:.0f}" for name, spent in self.parts.items())
        return (
            f"{self.rows:,} prompts of {self.tokens:,} tokens: {1e3 * self.whole:.0f} ms, "
            f"{1e3 * self.before:.0f} before the first plan is submitted ({parts})"
        )


def make_llm() -> tuple[LLM, Instant]:
    """An LLM over the fake, with everything else real."""
    with shapes.opened("qwen3-0.6b") as shape:
        spec = locate(shape.path, weights=False).spec(None)
        config = resolve(parse_options(shape.options), spec, GPU)
    executor = Instant()
    model = LoadedModel("none", spec, config, cast(Any, executor), executor.start(), None, {})
    llm = LLM.__new__(LLM)
    llm._session, llm._queued = Session(model), []
    return llm, executor


def measure(items: Sequence[workloads.Item], runs: int = 3) -> HostTime:
    """The last of some calls."""
    llm, executor = make_llm()
    prompts, params = workloads.requests(items)
    found = HostTime(len(items), sum(len(i.prompt) for i in items))
    session = llm._session
    for owner, name, shown in (
        (session.intake, "read", "check"),
        (session._planner, "order", "plan"),
        (session.engine.scheduler, "schedule", "schedule"),
        (session.engine.scheduler, "commit", "commit"),
        (session._results, "output", "outputs"),
    ):
        setattr(owner, name, _timed(found.parts, shown, getattr(owner, name)))
    for _ in range(runs):
        llm.reset_prefix_cache()
        found.parts.clear()
        executor.first = 0.0
        started = time.thread_time()
        llm.generate(prompts, params, use_tqdm=False)
        found.whole = time.thread_time() - started
        found.before = executor.first - started
    return found


def _timed(
    seconds: defaultdict[str, float], name: str, act: Callable[..., Any]
) -> Callable[..., Any]:
    def timed(*given: Any, **more: Any) -> Any:
        before = time.thread_time()
        try:
            return act(*given, **more)
        finally:
            seconds[name] += time.thread_time() - before

    return timed


def main() -> None:
    parser = argparse.ArgumentParser(description="host time of a call, without a model")
    parser.add_argument("workloads", nargs="+", choices=sorted(workloads.WORKLOADS))
    parser.add_argument("--runs", type=int, default=3, help="the last one counts")
    arguments = parser.parse_args()
    for name in arguments.workloads:
        print(f"{name}: {measure(workloads.build(name), arguments.runs)}", flush=True)


if __name__ == "__main__":
    main()
