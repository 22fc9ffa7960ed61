"""Where the time of a run goes, on the host and on the device."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

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
        self._time(self.host, engine, "_land")
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
        """`_land` waits and then commits: what is left of it is waiting."""
        host = dict(self.host)
        host["wait"] = host.pop("_land", 0.0) - host.get("commit", 0.0) - host.get("observe", 0.0)
        parts = [f"{name} {seconds:.2f}" for name, seconds in host.items()]
        plans = [f"{n} {kind} {self.device[kind]:.2f} s" for kind, n in self.plans.items()]
        inside = [f"{name} {seconds:.2f}" for name, seconds in self.inside.items()]
        return (
            f"    host: {', '.join(parts)}; plans: {', '.join(plans)}\n"
            f"    in submit: {', '.join(inside)}"
        )
