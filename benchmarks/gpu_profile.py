"""What one plan costs the device, kernel by kernel."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks import workloads
from benchmarks.budget import Budget
from benchmarks.offline import measure

if TYPE_CHECKING:
    from quire import LLM


def profile(llm: LLM, budget: Budget, wanted_names: Collection[str] = ()) -> None:
    """Kernel times: decode steps at 256 and 1,024 rows with contexts of about 768, steps of 1,024
    rows that share prefixes by sixteens and by all, a pass of prompts alone, and truncation; or
    those of these names."""

    def decodes(plan: Any) -> bool:
        return not plan.prefill and plan.repeat >= 8

    def prompts(plan: Any) -> bool:
        return bool(plan.prefill) and plan.num_tokens > 15_000

    def equal(count: int) -> list[workloads.Item]:
        return [
            workloads.Item([(7 * i + j) % 9000 + 10 for j in range(700)], 200) for i in range(count)
        ]

    report: dict[str, Any] = {}
    for name, items, wanted, nth in (
        ("decode 256", partial(equal, 256), decodes, 2),
        ("decode 1024", partial(equal, 1024), decodes, 2),
        ("prompts", partial(workloads.build, "prefill", 0.1), prompts, 3),
        ("sixteens", partial(workloads.build, "samples"), decodes, 4),
        ("fewshot", partial(workloads.build, "fewshot", 0.5), decodes, 1),
        ("nucleus", partial(workloads.build, "nucleus"), decodes, 2),
    ):
        if wanted_names and name not in wanted_names:
            continue
        work = partial(measure, llm, name, items(), 1)
        report[name] = profile_plan(llm, name, work, wanted, nth)
        budget.write("profile", report)


def profile_plan(
    llm: LLM,
    name: str,
    work: Callable[[], object],
    wanted: Callable[[Any], bool],
    nth: int,
) -> dict[str, Any]:
    """The nth plan of that kind in this work, alone on the device."""
    import torch
    from torch.profiler import ProfilerActivity

    executor = llm._session.engine.executor
    submit, seen = executor.submit, {"plans": 0, "repeat": 0}
    recorded = torch.profiler.profile(activities=[ProfilerActivity.CUDA])

    def counted(plan: Any) -> Any:
        seen["plans"] += wanted(plan)
        if not wanted(plan) or seen["plans"] != nth:
            return submit(plan)
        torch.cuda.synchronize()
        recorded.start()
        before = time.perf_counter()
        pending = submit(plan)
        returned = time.perf_counter() - before
        torch.cuda.synchronize()
        whole = time.perf_counter() - before
        recorded.stop()
        seen["repeat"] = plan.repeat
        print(
            f"{name}: {plan.num_tokens} tokens, {len(plan.decode)} rows, {len(plan.prefill)} "
            f"slices: submitted in {returned * 1e3:.1f} ms, done after {whole * 1e3:.1f} ms"
        )
        return pending

    executor.submit = counted  # type: ignore[method-assign]
    try:
        work()
    finally:
        executor.submit = submit  # type: ignore[method-assign]
    if not seen["repeat"]:
        print(f"{name}: no such plan was seen")
        return {}
    return summary(recorded, seen["repeat"], name)


def summary(recorded: Any, repeat: int, title: str) -> dict[str, Any]:
    """Microseconds per step by kernel, between kernels, and how much of the time the GPU worked."""
    events = sorted(
        (e for e in recorded.events() if e.device_type.name == "CUDA"),
        key=lambda e: e.time_range.start,
    )
    if not events:
        return {}
    begin, end = events[0].time_range.start, max(e.time_range.end for e in events)
    by_name: dict[str, list[float]] = {}
    busy, covered = 0.0, begin
    gaps: list[float] = []
    for event in events:
        first, last = event.time_range.start, event.time_range.end
        by_name.setdefault(event.name[:90], []).append(last - first)
        busy += max(0.0, last - max(first, covered))
        gaps.append(max(0.0, first - covered))
        covered = max(covered, last)
    lines = sorted(
        ((name, sum(times) / repeat, len(times) / repeat) for name, times in by_name.items()),
        key=lambda line: -line[1],
    )
    took = (end - begin) / repeat
    gap, longest = statistics.median(gaps), max(gaps)
    print(
        f"{title}, {repeat} steps: {took:.0f} us a step, busy {busy / repeat / took:.1%}, "
        f"{len(events) / repeat:.0f} launches, between two {gap:.2f} us (longest {longest:.1f})"
    )
    for name, spent, count in lines[:18]:
        print(f"  {spent:9.1f} us  {count:6.1f} launches  {name}", flush=True)
    return {
        "us_per_step": (end - begin) / repeat,
        "busy": busy / (end - begin),
        "launches_per_step": len(events) / repeat,
        "gap_us": gap,
        "longest_gap_us": longest,
        "kernels": lines[:60],
    }
