"""Rows that follow a grammar draw on the device, by masks that come while it computes."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence as Many
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from quire.errors import GrammarFailed
from quire.executor.cpu.local import LocalExecutor
from quire.executor.cuda.device_edits import DeviceEdits
from quire.params.row_sampling import MOST_SPELLED
from quire.params.structured import StructuredOutputsParams
from quire.request import Ints, Request
from quire.scheduler import ahead, repeats
from quire.scheduler.pacing import Pacing
from quire.scheduler.sequence import Guide, Sequence
from quire.step import Masks, StepPlan, StepResult
from quire.steps.handles import Handles
from tests.executor.cuda.plain import answers
from tests.executor.cuda.test_drawn_scores import Watched
from tests.executor.cuda.test_processors import Noted
from tests.executor.cuda.test_runner import PLAIN, ROOMS, SPEC, WEIGHTS, requests
from tests.executor.harness import told
from tests.specs import small_config

VOCAB = 200
GRAMMAR = {"structured_outputs": StructuredOutputsParams(regex="a")}  # stands for a walk
GUIDED: list[dict[str, object]] = [
    {"temperature": 0.0, **GRAMMAR},
    {"temperature": 1.0, "n": 2, **GRAMMAR},
    {"temperature": 1.0, "top_k": 9, "logprobs": 2, **GRAMMAR},
    {"temperature": 1.0, "allowed_token_ids": list(range(3, 190)), **GRAMMAR},
    {"temperature": 0.0, "repetition_penalty": 1.4, "min_tokens": 6, **GRAMMAR},
    {"temperature": 1.0, "bad_words": ["several tokens"], **GRAMMAR},
]
# Rows that may go on without their masks.
LIMITED: list[dict[str, object]] = [
    {"temperature": 1.5, "top_k": 5, **GRAMMAR},
    {"temperature": 0.7, "top_k": 20, "top_p": 0.8, **GRAMMAR},
    {"temperature": 1.0, "min_p": 0.02, "logprobs": 1, **GRAMMAR},
]
AHEAD: list[dict[str, object]] = [
    *GUIDED[:2],
    {"temperature": 0.8, "logprobs": 2, **GRAMMAR},
    *LIMITED[1:],
]
# What has no room in an entry, and what only the sampler can do, beside them.
MORE: list[dict[str, object]] = [
    {"temperature": 1.0, "logprobs": -1, **GRAMMAR},
    {"temperature": 1.0, "logprob_token_ids": [3, 150]},
    {"temperature": 1.0, "bad_words": ["too many tokens"], **GRAMMAR},
]


class Walk:
    """After token t come t + 1 .. t + 9, the end from the fifth token on, and 150 is a dead end.
    After 40 comes 41, whatever is drawn."""

    may_force = True
    walkable = None
    state = 0

    def __init__(self, last: int = 0, count: int = 0) -> None:
        self.last, self.count, self.must_draw = last, count, list[int]()
        self.error: GrammarFailed | None = None

    @property
    def is_complete(self) -> bool:
        return self.count >= 5

    @property
    def is_stopped(self) -> bool:
        return self.count >= 20

    def allowed(self) -> list[int]:
        if self.last == 150:
            self.error = GrammarFailed("a dead end")
            return []
        following = [(self.last + step) % VOCAB for step in range(1, 10)]
        return [t for t in following if t not in (5, 6)] + [5] * self.is_complete

    def accept(self, token_id: int) -> bool:
        self.last, self.count = token_id, self.count + 1
        self.must_draw = self.must_draw[1:]
        return True

    def try_accept(self, token_id: int) -> bool:
        return token_id in self.allowed() and self.accept(token_id)

    def forced(self) -> list[int]:
        return [41] if self.last == 40 else []

    def fork(self) -> Guide:
        return type(self)(self.last, self.count)


class Wide(Walk):
    """All but a few tokens may come; two of them must after some."""

    @property
    def is_stopped(self) -> bool:
        return self.count >= 50

    def allowed(self) -> list[int]:
        return (self.must_draw or self.forced())[:1] or self._free()

    def try_accept(self, token_id: int) -> bool:
        return token_id in self._free() and self.accept(token_id)

    def _free(self) -> list[int]:
        following = [t for t in range(6, VOCAB) if (t + self.last) % 9]
        return following + [5] * self.is_complete

    def forced(self) -> list[int]:
        return [41, 42] if self.last % 15 == 0 else []


class Filling:
    """Makes masks late: in a thread, when somebody waits for them."""

    def __init__(self, handles: Handles) -> None:
        self.handles, self.late = handles, 0

    def __call__(self, rows: Ints, guides: Many[Guide]) -> Masks:
        bits = self.handles.new_masks(len(rows), -(-VOCAB // 32))
        bits[:] = 0xAAAAAAAA  # of no meaning
        allowed = [guide.allowed() for guide in guides if isinstance(guide, Walk)]

        def fill() -> None:
            self.late += 1
            bits[:] = 0
            for line, tokens in enumerate(allowed):
                for token in tokens:
                    bits[line, token // 32] |= np.uint32(1 << token % 32)

        thread = threading.Thread(target=fill)

        def wait() -> None:
            thread.start()
            thread.join()

        return Masks(rows, bits, self.handles.filling(wait))


def endless(request: Request) -> Request:
    """Plans of several steps would waste too much on rows that may stop."""
    nothing: frozenset[int] = frozenset()
    free = request.params.structured_outputs is None
    return replace(request, eos_ids=nothing, stop_ids=nothing) if free else request


def run(
    executor: Any,
    config: Any,
    kinds: list[dict[str, object]],
    *,
    stopping: bool = True,
    count: int = 18,
    most: int = 30,
    guide: type[Walk] = Walk,
    pacing: Pacing | None = None,
) -> tuple[list[Sequence], int]:
    """The answers, each of at most `most` tokens, and how often masks came late."""
    masks = Filling(executor.handles)
    asked = [
        replace(one, max_tokens=min(one.max_tokens, most))
        for one in requests(kinds, count=count, seed=5)
    ]
    for one in asked:
        if one.params.bad_words:
            long = [list(range(MOST_SPELLED + 1))] * (one.params.bad_words == ["too many tokens"])
            one.params._bad_words_token_ids = [[a, a + 1] for a in range(100)] + long
    asked = asked if stopping else list(map(endless, asked))

    def guide_for(request: Request) -> Guide | None:
        return None if request.params.structured_outputs is None else guide()

    given: dict[str, Any] = {"guide_for": guide_for, "make_masks": masks, "pacing": pacing}
    return answers(executor, config, asked, **given), masks.late


def check(found: list[Sequence], expected: list[Sequence]) -> None:
    for one, wanted in zip(found, expected, strict=True):
        assert one.output_ids.tolist() == wanted.output_ids.tolist()
        assert (one.finish_reason, str(one.error)) == (wanted.finish_reason, str(wanted.error))
        assert told(one.logprobs)[0] == told(wanted.logprobs)[0]
        np.testing.assert_allclose(told(one.logprobs)[1], told(wanted.logprobs)[1], atol=1e-4)


@pytest.mark.parametrize(
    ("kinds", "ways"),
    [(GUIDED, set()), (PLAIN + GUIDED, set()), (PLAIN + GUIDED + MORE, {"late"})],
    ids=["alone", "mixed", "with more"],
)
def test_guided_rows_draw_the_tokens_of_the_plain_runner(
    kinds: list[dict[str, object]], ways: set[str]
) -> None:
    plain = small_config(num_blocks=256)
    expected, _ = run(LocalExecutor(plain, SPEC, dict(WEIGHTS)), plain, kinds)
    for depth, max_repeat, num_blocks in ROOMS:
        config = small_config(depth=depth, max_repeat=max_repeat, num_blocks=num_blocks)
        executor = Watched(config, SPEC, WEIGHTS)
        found, late = run(executor, config, kinds)
        assert executor.ways == ways and late > 5, config
        check(found, expected)
        assert {s.finish_reason for s in found} >= {"stop", "length"}


@pytest.mark.parametrize("full", [False, True], ids=["with room", "no room for edits"])
def test_few_guided_rows_pause_while_others_repeat(
    full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether they are drawn for by kernels, or, where these have no room, by the sampler."""
    monkeypatch.setattr(repeats, "MOST_RESTING", 0.9)
    if full:
        begin = DeviceEdits.begin
        monkeypatch.setattr(DeviceEdits, "begin", lambda self, s: s.row % 2 == 0 and begin(self, s))
    plain = small_config(num_blocks=256)
    kinds = [*PLAIN[:2], *PLAIN, GUIDED[0], GUIDED[4]]
    expected, _ = run(LocalExecutor(plain, SPEC, dict(WEIGHTS)), plain, kinds, stopping=False)
    config = small_config(depth=2, max_repeat=32, num_blocks=128, max_num_seqs=6)
    executor = Watched(config, SPEC, WEIGHTS)
    found, _ = run(executor, config, kinds, stopping=False)
    assert [s.output_ids.tolist() for s in found] == [s.output_ids.tolist() for s in expected]
    assert {repeat for _, repeat in executor.seen} & {2, 4}
    assert executor.ways == ({"late"} if full else set())


class Ahead(Watched):
    """Counts plans by how many tokens their rows with masks may draw."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.steps: Counter[int] = Counter()
        self.num_back = self.num_tried = self.num_rested = 0

    def submit(self, plan: StepPlan) -> Any:
        if plan.masks is not None:
            self.steps[int(plan.num_tried.max(initial=0))] += 1
        self.num_back += len(plan.chosen.rows)
        step, rows = super().submit(plan), plan.sampled_rows()
        return Noted(lambda: self._within(plan, rows, step.result()))

    def _within(self, plan: StepPlan, rows: Ints, result: StepResult) -> StepResult:
        for row, most in zip(plan.tried.tolist(), plan.num_tried.tolist(), strict=True):
            count = int(result.counts[rows == row][0])
            assert count <= most, "it has no blocks for more"
            self.num_tried, self.num_rested = self.num_tried + 1, self.num_rested + (count < most)
        return result


@pytest.mark.parametrize(
    ("kinds", "ends"),
    [
        (AHEAD, True),
        (AHEAD + PLAIN[:3], False),
        (LIMITED, True),
        (LIMITED[:1] * 5 + MORE[1:2], False),
    ],
    ids=["alone", "beside plain rows", "limited", "limited, beside those that are looked at"],
)
def test_rows_go_ahead_of_their_masks_and_draw_the_same(
    kinds: list[dict[str, object]], ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    took = ahead.Ahead.took
    monkeypatch.setattr(ahead.Ahead, "took", lambda self, k, _, rows: took(self, k, 3 + k, rows))
    plain, apart = small_config(num_blocks=256), Pacing(apart=True)
    given: dict[str, Any] = {"guide": Wide, "most": 60, "stopping": ends}
    expected, _ = run(LocalExecutor(plain, SPEC, dict(WEIGHTS)), plain, kinds, **given)
    assert kinds is not AHEAD or {s.finish_reason for s in expected} >= {"stop", "length"}
    for depth, max_repeat, num_blocks in ROOMS[2:]:
        config = small_config(depth=depth, max_repeat=max_repeat, num_blocks=num_blocks)
        executor = Ahead(config, SPEC, WEIGHTS)
        found, _ = run(executor, config, kinds, pacing=apart, **given)
        check(found, expected)
        assert max(executor.steps) > 1 and (executor.num_back > 1 or MORE[1] in kinds), config
        assert kinds is not LIMITED or 0 < executor.num_rested < executor.num_tried / 2, config


@pytest.mark.parametrize(
    "more",
    [
        {"frequency_penalty": 0.9},
        {"bad_words": ["several tokens"]},
    ],
    ids=str,
)
def test_where_a_mask_changes_more_than_it_forbids_rows_stay_with_it(
    more: dict[str, object],
) -> None:
    kinds: list[dict[str, object]] = [{"temperature": 1.0, "logprobs": 1, **more, **GRAMMAR}]
    given: dict[str, Any] = {"guide": Wide, "count": 6}
    plain = small_config(num_blocks=256)
    expected, _ = run(LocalExecutor(plain, SPEC, dict(WEIGHTS)), plain, kinds, **given)
    config = small_config(depth=2, max_repeat=8, num_blocks=128)
    executor = Ahead(config, SPEC, WEIGHTS)
    found, _ = run(executor, config, kinds, pacing=Pacing(apart=True), **given)
    check(found, expected)
    assert set(executor.steps) == {0}
