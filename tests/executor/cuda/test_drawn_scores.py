"""Rows with logprobs run as plain ones do: by the device's own sampling, many steps a plan."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from quire.executor.cuda.sampler_draws import SomeLines
from quire.executor.cuda.step import CudaStep
from quire.request import Request
from quire.step import StepPlan
from tests.executor.cuda.plain import PlainExecutor, answers
from tests.executor.cuda.test_runner import PLAIN, SPEC, WEIGHTS, expected, requests
from tests.executor.harness import told
from tests.specs import small_config
from tests.testing.pairs import in_pairs

SCORED: list[dict[str, object]] = [
    {"temperature": 0.0, "logprobs": 0},
    {"temperature": 1.0, "logprobs": 20, "n": 3},
    {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "logprobs": 3},
]
# What has no room in an entry, beside them.
MORE: list[dict[str, object]] = [
    {"temperature": 1.0, "logprobs": 30, "repetition_penalty": 1.2},
    {"temperature": 1.0, "logprob_token_ids": [3, 150], "n": 2},
    {"temperature": 0.0, "logprob_token_ids": [7]},
]
WHOLE: list[dict[str, object]] = [{"temperature": 1.0, "logprobs": -1}]
KINDS = {
    "own": PLAIN + SCORED,
    "with more": SCORED + MORE,
    "with the whole vocabulary": SCORED + WHOLE,
}


def few_stop(kinds: list[dict[str, object]]) -> list[Request]:
    """Requests of which few may stop by a token: plans of several steps would waste too much."""
    nothing: frozenset[int] = frozenset()
    return [
        one if one.number % 7 == 0 else replace(one, eos_ids=nothing, stop_ids=nothing)
        for one in requests(kinds)
    ]


class Watched(PlainExecutor):
    """Counts plans by (what the sampler drew for them: nothing, some rows at once, or later, how
    many steps they had)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.seen: Counter[tuple[str, int]] = Counter()
        self._at_once: list[int] = []
        draws = self.runner._draws
        now = draws.now

        def noted(some: SomeLines, *given: Any) -> Any:
            self._at_once.append(len(some.lines))
            return now(some, *given)

        vars(draws)["now"] = noted

    def submit(self, plan: StepPlan) -> CudaStep:
        self._at_once.clear()
        made = super().submit(plan)
        how = "now" if self._at_once else "late" if made.draw_late is not None else ""
        self.seen[how, plan.repeat] += 1
        return made

    @property
    def ways(self) -> set[str]:
        return {how for how, _ in self.seen} - {""}


@pytest.mark.parametrize(
    ("mode", "which", "room"),
    in_pairs(["raw_logprobs", "raw_logits", "processed_logprobs"], [*KINDS], [(1, 128), (8, 40)]),
)
def test_logprobs_are_those_of_one_step_at_a_time(
    mode: str, which: str, room: tuple[int, int]
) -> None:
    max_repeat, num_blocks = room
    kinds = KINDS[which]
    config = small_config(depth=2, max_repeat=max_repeat, num_blocks=num_blocks, logprobs_mode=mode)
    executor = Watched(config, SPEC, WEIGHTS)
    got = answers(executor, config, few_stop(kinds))
    for one, wanted in zip(got, expected(few_stop(kinds), config), strict=True):
        assert one.output_ids.tolist() == wanted.output_ids.tolist()
        assert (one.finish_reason, one.stop_reason) == (wanted.finish_reason, wanted.stop_reason)
        assert told(one.logprobs)[0] == told(wanted.logprobs)[0]
        np.testing.assert_allclose(told(one.logprobs)[1], told(wanted.logprobs)[1], atol=1e-4)
        if one.request.params.num_logprobs is not None:
            assert sum(map(len, one.logprobs)) == len(one.output_ids)
    assert executor.ways == ({"late"} if mode.startswith("processed") else set())
    assert any(repeat > 1 for _, repeat in executor.seen) is (max_repeat > 1)
