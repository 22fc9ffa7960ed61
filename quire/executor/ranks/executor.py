"""RanksExecutor: sends plans to processes that each compute a share of the model.

This process schedules and runs the code of requests. It computes nothing and never opens a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from quire.config import EngineConfig
from quire.errors import EngineClosed, NotSupported
from quire.executor.executor import ExecutorFacts, Part
from quire.executor.plain_data import from_json, to_json
from quire.executor.ranks.adapters import SentAdapters, for_ranks
from quire.executor.ranks.held_rows import HeldRows
from quire.executor.ranks.processes import SILENCE, RankProcesses
from quire.executor.ranks.wire import Kind
from quire.ranks.shares import OPTION
from quire.step import StepPlan, StepResult
from quire.steps.codec import decode, encode
from quire.steps.handles import Handles

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(slots=True)
class RankStep:
    """A plan in flight."""

    executor: RanksExecutor
    plan: StepPlan
    number: int

    def result(self) -> StepResult:
        return self.executor.land(self)


class RanksExecutor:
    def __init__(
        self,
        config: EngineConfig,
        module: str,
        jobs: Sequence[Mapping[str, object]],
        *,
        silence: float = SILENCE,
    ) -> None:
        """`module`: the Python module that each rank runs with one of `jobs`; see
        session/rank.py."""
        if config.batch_processors:
            names = ", ".join(getattr(c, "__qualname__", repr(c)) for c in config.batch_processors)
            raise NotSupported(
                f"logits_processors={names} edit the logits of every row where these are made, "
                f"which with {OPTION}={len(jobs)} is in other processes. Give the functions of "
                "single requests (SamplingParams.logits_processors), or use one rank."
            )
        self.config = config
        self.handles = Handles()
        self._held = HeldRows(self.handles)
        self._sent = SentAdapters(config.adapters)
        self._ranks: RankProcesses | None = RankProcesses(module, jobs, silence=silence)

    def start(self) -> ExecutorFacts:
        """Wait until the ranks are ready. They began to load when this object was made."""
        try:
            facts: ExecutorFacts = from_json(self._alive.wait_started())
        except BaseException:
            self.close()
            raise
        line = f"{self._alive.size} ranks, each a process with its share of every layer"
        return replace(facts, notes=(*facts.notes, line))

    @property
    def pids(self) -> list[int]:
        """The processes of the ranks, in their order."""
        return self._alive.pids

    @property
    def _alive(self) -> RankProcesses:
        if self._ranks is None:
            raise EngineClosed("this executor was closed; make a new one.")
        return self._ranks

    def submit(self, plan: StepPlan) -> RankStep:
        if plan.masks is not None:
            self.handles.wait_for(plan.masks)
            plan = replace(plan, masks=replace(plan.masks, ticket=0))
        for start in plan.starts:
            if start.adapter:
                self._send_adapter(start.adapter)
        data = encode(self._held.given(plan))
        return RankStep(self, plan, self._alive.tell(Kind.PLAN, data))

    def _send_adapter(self, number: int) -> None:
        """Send an adapter to all ranks before a plan that uses it, if they do not have it."""
        weights = None if number in self._sent else self.handles.adapter(number)
        forgotten = self._sent.use(number)
        if weights is not None:
            data = encode(for_ranks(number, forgotten, weights))
            self._alive.answers(self._alive.tell(Kind.ADAPTER, data), reading=True)

    def land(self, step: RankStep) -> StepResult:
        """Wait for a plan's result. Called once for each plan, in their order."""
        answers = self._alive.answers(step.number)
        return self._held.taken(step.plan, decode(answers[0].data))

    def reset(self) -> None:
        """End all rows. If ranks have died there are none to end; the next plan reports that."""
        self._held.clear()
        if self._alive.failed:
            return
        self._alive.tell(Kind.RESET)
        self._alive.settle()

    def sleep(self, *, keep_weights: bool) -> None:
        self._ask(Kind.SLEEP, {"keep_weights": keep_weights})

    def wake_up(self, part: Part) -> None:
        self._ask(Kind.WAKE, {"part": part})

    def _ask(self, kind: Kind, what: dict[str, object]) -> None:
        self._alive.answers(self._alive.tell(kind, to_json(what)), reading=True)

    def load_weights(self, named: Iterable[tuple[str, Tensor]]) -> set[str]:
        raise NotSupported(
            f"ranks take no other weights while they run: make a new LLM, or one with {OPTION}=1."
        )

    def close(self) -> None:
        """End the ranks, which frees their memory."""
        if self._ranks is not None:
            self._ranks.close()
            self._held.clear()
        self._ranks = None
