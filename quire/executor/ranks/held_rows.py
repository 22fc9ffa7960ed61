"""Runs the logits processors of rows in the engine's process, for ranks in other processes."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from quire.sampling.call_threads import Call, CallThreads
from quire.sampling.processors import RowProcessors, settle
from quire.step import Floats, StepPlan, StepResult
from quire.steps.handles import Handles
from quire.steps.ranked import RankPlan, RankResult


class HeldRows:
    """The processors of rows and their running calls. Rows begin and end here in the order of
    results, so that late logits are not taken for those of the row's next sequence."""

    def __init__(self, handles: Handles) -> None:
        self._handles, self._lanes = handles, CallThreads()
        self._processors: dict[int, RowProcessors] = {}
        self._calls: dict[int, Call[Tensor]] = {}

    def given(self, plan: StepPlan) -> RankPlan:
        """The plan, with the processed logits of the rows that it releases."""
        rows = plan.released.tolist()
        calls = [self._calls.pop(row) for row in rows]
        made, logits, failed = settle([self._processors[row] for row in rows], calls)
        processed: dict[int, Floats] = {}
        if logits is not None:
            processed = {rows[i]: line for i, line in zip(made, logits.numpy(), strict=True)}
        failures = {rows[i]: str(error) for i, error in failed.items()}
        return RankPlan(plan, processed, failures)

    def taken(self, plan: StepPlan, made: RankResult) -> StepResult:
        """The result of a plan. Processors begin to work on the logits that came with it."""
        for row in plan.ends.tolist():
            self._forget(row)
        for start in plan.starts:
            self._forget(start.row)
            if start.has_processors:
                processors = self._handles.request(start.request).processors
                self._processors[start.row] = RowProcessors(start, processors)
        result = made.result
        first = len(result.counts) - len(plan.released)
        for line, row in enumerate(plan.released.tolist(), first):
            if result.counts[line] and row in self._processors:
                self._processors[row].append(int(result.tokens[line, 0]))
        if not result.held:
            return result
        held = {}
        for line, row in result.held.items():
            logits = torch.from_numpy(made.logits[row])
            self._calls[row] = call = self._processors[row].begin(logits, self._lanes)
            held[line] = self._handles.hold(call)
        return replace(result, held=held)

    def clear(self) -> None:
        for row in list(self._processors):
            self._forget(row)

    def _forget(self, row: int) -> None:
        if row in self._calls:
            self._calls.pop(row).cancel()
        self._processors.pop(row, None)
