"""An executor whose ranks are threads of this process: the same shares, the same sums, in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import torch
from torch import Tensor

from quire.config import EngineConfig
from quire.executor.cpu.local import FinishedStep, LocalExecutor
from quire.executor.executor import ExecutorFacts, Part
from quire.executor.ranks.held_rows import HeldRows
from quire.executor.ranks.sampler import RankSampler
from quire.layers.tp import TensorParallel
from quire.ranks.shares import of_rank
from quire.session.cpu_weights import load_cpu_weights
from quire.step import StepPlan
from quire.steps.handles import Handles
from quire.steps.ranked import RankResult
from tests.ranks.threads import ThreadExchange


class ThreadRanks:
    """Stands in for RanksExecutor."""

    def __init__(
        self,
        config: EngineConfig,
        module: str,
        jobs: Sequence[Mapping[str, Any]],
        *,
        silence: float = 0.0,
    ) -> None:
        self.config, self.handles, self.jobs = config, Handles(), jobs
        self._held = HeldRows(self.handles)
        self._samplers: dict[int, RankSampler] = {}
        self._pool = ThreadPoolExecutor(len(jobs))
        slots: list[Tensor | None] = [None] * len(jobs)
        barrier = Barrier(len(jobs))
        self._ranks = [self._make(job, slots, barrier) for job in jobs]

    def _make(
        self, job: Mapping[str, Any], slots: list[Tensor | None], barrier: Barrier
    ) -> LocalExecutor:
        share, spec, config = job["share"], job["spec"], job["config"]

        def make_sampler(*arguments: Any) -> RankSampler:
            self._samplers[share.rank] = RankSampler(*arguments)
            return self._samplers[share.rank]

        return LocalExecutor(
            config,
            of_rank(spec, share),
            load_cpu_weights(job["files"], spec, config, share=share),
            tp=TensorParallel(share, ThreadExchange(share.rank, slots, barrier)),
            make_sampler=make_sampler,
        )

    def _on_all(self, work: Callable[[int], Any]) -> list[Any]:
        return list(self._pool.map(work, range(len(self._ranks))))

    def start(self) -> ExecutorFacts:
        torch.set_num_threads(1)
        facts: ExecutorFacts = self._on_all(lambda rank: self._ranks[rank].start())[0]
        return facts

    def submit(self, plan: StepPlan) -> FinishedStep:
        if plan.masks is not None:
            self.handles.wait_for(plan.masks)
        given = self._held.given(plan)

        def run(rank: int) -> RankResult:
            sampler = self._samplers[rank]
            sampler.processed, sampler.failures = given.processed, given.failures
            result = self._ranks[rank].submit(given.plan).result()
            return RankResult(result, sampler.take_asked())

        return FinishedStep(self._held.taken(plan, self._on_all(run)[0]))

    def reset(self) -> None:
        self._held.clear()
        for one in self._ranks:
            one.reset()

    def sleep(self, *, keep_weights: bool) -> None:
        for one in self._ranks:
            one.sleep(keep_weights=keep_weights)

    def wake_up(self, part: Part) -> None:
        self._on_all(lambda rank: self._ranks[rank].wake_up(part))

    def close(self) -> None:
        self._pool.shutdown()
        for one in self._ranks:
            one.close()
