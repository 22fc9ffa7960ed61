"""Where the seconds of a workload are, plan by plan: on the device, and between plans.

    python benchmarks/gpu_timeline.py qwen3-0.6b --workloads mixed tail --runs 2 --out timelines

For the last run of each workload: how long the host took before the first plan, then for each kind
and size of plan their number, their steps, milliseconds on the device, and milliseconds for which
the device waited. `--out` gets every plan as a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

if not __package__:  # run as a file: the repository is not on the path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import workloads
from benchmarks.gpu import opened
from benchmarks.offline import measure
from quire.step import StepPlan

PASS_TOKENS = 4096  # prompt passes are counted by multiples of it


@dataclass(frozen=True, slots=True)
class Timed:
    """A plan; milliseconds of the host since the call, of the device since the first plan."""

    kind: str
    rows: int
    prompt_tokens: int
    slices: int
    steps: int
    submitted: float
    returned: float
    began: float
    ended: float

    @property
    def size(self) -> str:
        """Decode plans go by the power of two of their rows, others by their prompt tokens."""
        if self.kind == "decode":
            return f"{1 << max(self.rows - 1, 0).bit_length()} rows"
        return f"{-(-self.prompt_tokens // PASS_TOKENS) * PASS_TOKENS} tokens"


class Timeline:
    """Watches the plans of an engine."""

    def __init__(self, executor: Any) -> None:
        self._seen: list[tuple[StepPlan, float, float, Any, Any]] = []
        submit, change = executor.submit, executor._runner._change
        marks: list[Any] = []

        def changed(plan: StepPlan, upload: Any) -> None:
            marks.append(_mark())  # what comes before is the host's
            change(plan, upload)

        def submitted(plan: StepPlan) -> Any:
            before = time.perf_counter()
            pending = submit(plan)
            self._seen.append((plan, before, time.perf_counter(), marks.pop(), _mark()))
            return pending

        executor.submit, executor._runner._change = submitted, changed

    def clear(self) -> None:
        self._seen.clear()

    def plans(self, started: float) -> list[Timed]:
        torch.cuda.synchronize()
        first = self._seen[0][3]
        return [
            Timed(
                kind="decode" if not plan.prefill else "mixed" if len(plan.decode) else "prompts",
                rows=len(plan.decode),
                prompt_tokens=sum(len(s.token_ids) for s in plan.prefill),
                slices=len(plan.prefill),
                steps=plan.repeat,
                submitted=1e3 * (before - started),
                returned=1e3 * (after - started),
                began=first.elapsed_time(begin),
                ended=first.elapsed_time(end),
            )
            for plan, before, after, begin, end in self._seen
        ]


def _mark() -> Any:
    event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def show(plans: list[Timed]) -> None:
    """By kind and size: plans, steps, milliseconds, and those that the device waited."""
    by_kind: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0, 0, 0.0, 0.0])
    until = 0.0
    for plan in plans:
        line = by_kind[plan.kind, plan.size]
        spent = (1, plan.steps, plan.ended - plan.began, plan.began - until)
        by_kind[plan.kind, plan.size] = [a + b for a, b in zip(line, spent, strict=True)]
        until = plan.ended
    print(f"  {plans[0].submitted:.0f} ms before the first plan, then {until:.0f} on the device")
    for (kind, size), (count, steps, took, waited) in sorted(by_kind.items()):
        each = took / steps
        print(
            f"  {kind:8} {size:>12}: {count:4.0f} plans, {steps:5.0f} steps, {took:8.1f} ms "
            f"({each:7.3f} each), waited {waited:6.1f} ms",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--workloads", nargs="+", default=["mixed"])
    parser.add_argument("--runs", type=int, default=2, help="the last one is shown")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with opened(arguments.model, {}) as llm:
        timeline = Timeline(llm._session.engine.executor)
        for name in arguments.workloads:
            for _ in range(arguments.runs):
                timeline.clear()
                found = measure(llm, name, workloads.build(name), 1)
                started = time.perf_counter() - found.seconds
            plans = timeline.plans(started)
            print(f"{arguments.model} {name}: {found.seconds:.2f} s, {found.steps} steps")
            show(plans)
            if arguments.out:
                arguments.out.mkdir(parents=True, exist_ok=True)
                lines = "".join(f"{json.dumps(asdict(plan))}\n" for plan in plans)
                (arguments.out / f"{arguments.model}-{name}.jsonl").write_text(lines)


if __name__ == "__main__":
    main()
