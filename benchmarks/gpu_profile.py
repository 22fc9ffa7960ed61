"""Where the time of a run goes on the host and on the device, and of one plan, kernel by kernel."""

from __future__ import annotations

import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks import workloads
from benchmarks.harness import Budget
from benchmarks.offline import measure

if TYPE_CHECKING:
    from quire import LLM


class Clock:
    """Where the time of an engine goes: host seconds by what it does, and the device's by plan."""

    def __init__(self, llm: LLM) -> None:
        engine = llm._session.engine
        self.host: defaultdict[str, float] = defaultdict(float)
        self.device: defaultdict[str, float] = defaultdict(float)
        self.plans: Counter[str] = Counter()
        self.inside: defaultdict[str, float] = defaultdict(float)
        self._time(self.host, engine.scheduler, "schedule")
        self._time(self.host, engine.scheduler, "commit")
        self._time(self.host, engine.executor, "submit")
        self._time(self.host, engine, "_commit_oldest")
        runner: Any = getattr(engine.executor, "_runner", None)
        if hasattr(runner, "graphs"):  # the parts of submit
            self._time(self.inside, runner.columns, "pack")
            self._time(self.inside, runner._decoding, "seat")
            self._time(self.inside, runner._prompts, "lay_out")
            self._time(self.inside, runner, "_change")
            self._time(self.inside, runner.graphs, "run")
            self._time(self.inside, runner._prompts, "run", "prompts")
            self._time(self.inside, runner._host_copies, "send")
            self._time(self.inside, runner._draws, "draw", "host draws, not in submit")
        observe = engine._observe

        def observed(plan: Any, seconds: float) -> None:
            kind = "decode" if not plan.prefill else "mixed" if len(plan.decode) else "prefill"
            self.device[kind] += seconds
            self.plans[kind] += 1
            before = time.perf_counter()
            observe(plan, seconds)
            self.host["observe"] += time.perf_counter() - before

        engine._observe = observed

    @staticmethod
    def _time(
        seconds: defaultdict[str, float], owner: Any, name: str, shown: str | None = None
    ) -> None:
        act: Callable[..., Any] = getattr(owner, name)

        def timed(*given: Any) -> Any:
            before = time.perf_counter()
            try:
                return act(*given)
            finally:
                seconds[shown or name] += time.perf_counter() - before

        setattr(owner, name, timed)

    def reset(self) -> None:
        self.host.clear()
        self.inside.clear()
        self.device.clear()
        self.plans.clear()

    def line(self) -> str:
        """`_commit_oldest` waits and then commits: what is left of it is waiting."""
        host = dict(self.host)
        host["wait"] = (
            host.pop("_commit_oldest", 0.0) - host.get("commit", 0.0) - host.get("observe", 0.0)
        )
        parts = [f"{name} {seconds:.2f}" for name, seconds in host.items()]
        plans = [f"{n} {kind} {self.device[kind]:.2f} s" for kind, n in self.plans.items()]
        inside = [f"{name} {seconds:.2f}" for name, seconds in self.inside.items()]
        return (
            f"    host: {', '.join(parts)}; plans: {', '.join(plans)}\n"
            f"    in submit: {', '.join(inside)}"
        )


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
