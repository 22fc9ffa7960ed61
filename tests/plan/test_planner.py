"""Order, duplicates, and counts that agree with a real run."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.cache.groups import Windows
from quire.plan.lengths import OutputLengths
from quire.plan.plan import Percentiles
from quire.request import NamedTokens, Request
from quire.sampling_params import SamplingParams
from tests.plan.making import planner, request, run_scheduler


@st.composite
def mixed_requests(draw: st.DrawFn) -> list[Request]:
    tokens = st.lists(st.integers(0, 2), min_size=1, max_size=20)
    items = draw(
        st.lists(
            st.tuples(tokens, st.integers(1, 6), st.sampled_from([0, 0, 0, 1, -1]), st.booleans()),
            max_size=14,
        )
    )
    return [
        request(p, i, max_tokens=m, priority=q, temperature=0.0 if greedy else 1.0)
        for i, (p, m, q, greedy) in enumerate(items)
    ]


@given(mixed_requests())
def test_every_request_runs_once_or_repeats_one_that_does(requests: list[Request]) -> None:
    plan = planner().plan(requests)
    assert sorted([*plan.order, *plan.duplicates]) == list(range(len(requests)))
    assert set(plan.duplicates.values()) <= set(plan.order)
    assert all(first < repeat for repeat, first in plan.duplicates.items())


@given(mixed_requests())
def test_the_same_requests_give_the_same_plan(requests: list[Request]) -> None:
    assert planner().plan(requests).order == planner().plan(requests).order


@given(mixed_requests())
def test_lower_priority_numbers_go_first(requests: list[Request]) -> None:
    priorities = [requests[i].priority for i in planner().plan(requests).order]
    assert priorities == sorted(priorities)


@given(mixed_requests())
def test_groups_stay_together_within_a_priority(requests: list[Request]) -> None:
    plan = planner().plan(requests)
    for group in plan.groups:
        for priority in {r.priority for r in requests}:
            members = set(group.members)
            places = [
                k
                for k, i in enumerate(plan.order)
                if i in members and requests[i].priority == priority
            ]
            assert places == list(range(places[0], places[-1] + 1)) if places else True


@given(mixed_requests())
def test_groups_and_singles_go_longest_first(requests: list[Request]) -> None:
    requests = [replace(r, priority=0) for r in requests]
    plan = planner().plan(requests)
    outer = {i: g for g in plan.groups if g.parent is None for i in g.members}
    longest = [
        max(requests[m].max_tokens for m in outer[i].members) if i in outer else r.max_tokens
        for i, r in ((i, requests[i]) for i in plan.order)
    ]
    assert longest == sorted(longest, reverse=True)


def test_a_long_member_brings_its_group_forward_and_goes_first_in_it() -> None:
    shared = [1, 2, 3, 4]
    requests = [
        request([9, 9, 9], 0, max_tokens=20),
        request([*shared, 5], 1, max_tokens=3),
        request([*shared, 6], 2, max_tokens=30),
        request([8, 8, 8], 3, max_tokens=20),
    ]
    assert planner().plan(requests).order == (2, 1, 0, 3)


def test_what_was_learned_about_lengths_decides_the_order() -> None:
    lengths = OutputLengths()
    may_stop = request([1], 0, max_tokens=500, eos_ids=frozenset({2}))
    for _ in range(200):
        lengths.observe(may_stop, 5, stopped=True)
    plan = planner(lengths=lengths).plan([may_stop, request([3], 1, max_tokens=100)])
    assert plan.order == (1, 0)
    assert "may stop before max_tokens" in plan.explain()


@pytest.mark.parametrize(
    ("second", "same"),
    [
        ({}, True),
        ({"seed": 3}, True),  # greedy: the seed is never asked
        ({"temperature": 1.0}, False),
        ({"max_tokens": 5}, False),
        ({"logprobs": 2}, False),
        ({"stop": ["x"]}, False),
        ({"logit_bias": {1: 2.0}}, False),
        ({"priority": 1}, False),
        ({"cache_salt": "s"}, False),
        ({"eos_ids": frozenset({2})}, False),
        ({"hidden_from": 1}, False),
    ],
)
def test_greedy_requests_are_merged_when_everything_is_equal(
    second: dict[str, object], same: bool
) -> None:
    requests = [request([1, 2, 3], 0), request([1, 2, 3], 1, **second)]
    assert planner().plan(requests).duplicates == ({1: 0} if same else {})


def test_sampled_requests_are_merged_only_with_the_same_given_seed() -> None:
    seeds = [None, None, 5, 5, 6]
    requests = [request([1, 2], i, temperature=1.0, seed=s) for i, s in enumerate(seeds)]
    assert planner().plan(requests).duplicates == {3: 2}


def test_several_samples_are_merged_when_their_number_is_equal() -> None:
    requests = [request([1], i, temperature=1.0, seed=5, n=n) for i, n in enumerate((2, 2, 3))]
    assert planner().plan(requests).duplicates == {1: 0}


def test_equal_dictionaries_and_lists_in_parameters_compare_equal() -> None:
    given = {"logit_bias": {1: 2.0, 3: 4.0}, "stop_token_ids": [4, 5]}
    other = {"logit_bias": {3: 4.0, 1: 2.0}, "stop_token_ids": [4, 5]}
    requests = [request([1], 0, **given), request([1], 1, **other)]
    assert planner().plan(requests).duplicates == {1: 0}


def test_a_request_with_a_processor_is_never_merged() -> None:
    def processor(ids: list[int], logits: object) -> object:
        return logits

    requests = [request([1], i, logits_processors=[processor]) for i in range(2)]
    assert planner().plan(requests).duplicates == {}


def test_prompts_of_another_length_are_no_duplicates() -> None:
    requests = [request([1, 2, 3, 4], 0), request([1, 2, 3, 4, 5], 1), request([1, 2, 3], 2)]
    assert planner().plan(requests).duplicates == {}


def some_requests(seed: int) -> list[Request]:
    rng = np.random.default_rng(seed)
    preambles = [rng.integers(10, 900, int(rng.integers(1, 60))).tolist() for _ in range(3)]
    requests = []
    for i in range(int(rng.integers(1, 40))):
        prompt = rng.integers(10, 900, int(rng.integers(1, 50))).tolist()
        if rng.random() < 0.5:
            prompt = preambles[int(rng.integers(3))] + prompt
        n = int(rng.integers(2, 5)) if rng.random() < 0.2 else 1
        sampled = n > 1 or rng.random() < 0.3
        extra = {"prompt_logprobs": int(rng.integers(0, 3))} if rng.random() < 0.2 else {}
        length, temperature = int(rng.integers(1, 40)), float(sampled)
        one = request(prompt, i, max_tokens=length, temperature=temperature, n=n, **extra)
        requests.append(one)
    return requests


def naming(request: Request) -> Request:
    """It asks about tokens of its own choice, or about these too: then from the first on."""
    first = request.num_prompt // 2 if request.params.prompt_logprobs is None else 0
    ids = np.ones((request.num_prompt - 1 - first, 1), np.int32)
    return replace(request, named=NamedTokens(first, ids))


@pytest.mark.parametrize("seed", range(40))
def test_the_counts_agree_with_the_run(seed: int) -> None:
    rng = np.random.default_rng(1000 + seed)
    requests = some_requests(seed)
    requests[5::9] = map(naming, requests[5::9])
    made = planner(
        num_blocks=4000,
        depth=int(rng.integers(1, 4)),
        max_num_seqs=int(rng.integers(2, 20)),
        max_num_batched_tokens=int(rng.integers(20, 200)),
        enable_prefix_caching=seed % 5 != 0,
    )
    plan = made.plan(requests)
    seen = run_scheduler(requests, plan.order, made.config, made.num_blocks)
    assert {i: int(plan.cached_tokens[i]) for i in plan.order} == seen.cached
    assert plan.num_cached_tokens == sum(seen.cached.values())
    estimate = plan.estimate
    assert estimate.steps == seen.steps
    assert estimate.computed_tokens == seen.tokens
    assert estimate.sampled_tokens == seen.sampled
    assert estimate.context == seen.context
    assert seen.preemptions == 0 and not estimate.preemptions_likely
    assert estimate.peak_blocks == pytest.approx(seen.peak_blocks, rel=0.1, abs=2)


@pytest.mark.parametrize("depth", [1, 2])
def test_the_steps_are_near_where_blocks_are_scarce(depth: int) -> None:
    rng = np.random.default_rng(depth)
    requests = [
        request(
            rng.integers(10, 900, int(rng.integers(50, 300))).tolist(),
            i,
            max_tokens=int(rng.integers(20, 300)),
        )
        for i in range(400)
    ]
    made = planner(
        num_blocks=1500, block_size=16, max_num_seqs=256, max_num_batched_tokens=4096, depth=depth
    )
    plan = made.plan(requests)
    seen = run_scheduler(requests, plan.order, made.config, made.num_blocks)
    assert plan.estimate.peak_rows < 150, "the pool was not scarce"
    assert plan.estimate.steps == pytest.approx(seen.steps, rel=0.02)
    assert plan.estimate.peak_blocks == pytest.approx(seen.peak_blocks, rel=0.01)


@pytest.mark.parametrize(("windows", "num_blocks"), [((None, 64, 64), 2200), ((100, 100), 1600)])
def test_blocks_of_windows_are_foretold(windows: Windows, num_blocks: int) -> None:
    """A row stops growing in groups whose window is full."""
    rng = np.random.default_rng(1)
    requests = [
        request(
            rng.integers(10, 900, int(rng.integers(50, 300))).tolist(),
            i,
            max_tokens=int(rng.integers(20, 300)),
        )
        for i in range(200)
    ]
    given = {"block_size": 16, "max_num_seqs": 256, "max_num_batched_tokens": 512}
    made = planner(num_blocks=num_blocks, windows=windows, **given)
    plan = made.plan(requests)
    seen = run_scheduler(requests, plan.order, made.config, num_blocks, windows)
    assert plan.estimate.steps == pytest.approx(seen.steps, rel=0.05)
    assert plan.estimate.peak_blocks == pytest.approx(seen.peak_blocks, rel=0.08)
    full = planner(num_blocks=num_blocks, windows=(None,) * len(windows), **given)
    assert full.plan(requests).estimate.steps > 1.2 * plan.estimate.steps


def test_plans_of_many_steps_add_little() -> None:
    requests = some_requests(3)
    made = planner(num_blocks=4000, max_repeat=8, depth=2)
    seen = run_scheduler(requests, made.plan(requests).order, made.config, 4000)
    assert made.plan(requests).estimate.steps == pytest.approx(seen.steps, rel=0.03)


def test_what_earlier_calls_left_in_the_cache_counts() -> None:
    requests = [request(list(range(9)), 0), request([7, 7, 7], 1)]
    plan = planner().plan(requests, cached=[8, 0])
    assert plan.cached_tokens.tolist() == [8, 0]
    assert plan.estimate.computed_tokens == 1 + 3 + 2 * 3


def test_without_a_prefix_cache_nothing_is_cached_and_nothing_grouped() -> None:
    requests = [request([*range(12), i], i, temperature=1.0) for i in range(5)]
    plan = planner(enable_prefix_caching=False).plan(requests)
    assert plan.groups == () and plan.num_cached_tokens == 0
    assert "the prefix cache is off" in plan.explain()


def test_explain_says_what_will_happen() -> None:
    shared = list(range(100, 120))
    requests = [request([*shared, i], i, max_tokens=10) for i in range(6)]
    requests += [request([*shared, 0], 6, max_tokens=10), request([1, 2, 3], 7, max_tokens=12)]
    text = planner().plan(requests).explain()
    assert "8; 7 to run" in text
    assert "150 tokens: shortest 3, median 21" in text
    assert "82 tokens at most, 82 expected" in text
    assert "1 repeat one of 1 others" in text
    assert "1 group of 6 prompts; the largest: 6 prompts share 20 tokens" in text
    assert "100 prompt tokens come from the prefix cache, 29 are computed (80.7% saved)" in text
    assert "12 predicted, of at most 7 rows" in text
    assert "of 1,000 at the peak" in text and "no preemption expected" in text
    assert "nothing measured yet" in text
    assert all(len(line) < 200 for line in text.splitlines())


def test_a_request_larger_than_the_pool_is_named() -> None:
    requests = [request(list(range(50)), 0), request([1, 2], 1)]
    plan = planner(num_blocks=4).plan(requests)
    assert plan.estimate.not_fitting == 1
    text = plan.explain()
    assert "1 outgrow the whole pool" in text and "the first is prompt 0" in text


def test_planning_nothing_works() -> None:
    plan = planner().plan([])
    assert plan.order == () and plan.estimate.steps == 0
    assert "0 to run" in plan.explain()


def test_percentiles_are_counts_that_occur() -> None:
    assert Percentiles.of([1, 2, 3, 4]) == Percentiles(1, 2, 4, 4, 4)
    assert Percentiles.of([]) == Percentiles(0, 0, 0, 0, 0)


def test_planning_writes_into_nothing_it_was_given() -> None:
    requests = some_requests(1)
    before = [(r.prompt_ids.copy(), replace(r.params)) for r in requests]
    planner().plan(requests).explain()
    for one, (ids, params) in zip(requests, before, strict=True):
        assert (one.prompt_ids == ids).all() and one.params == params


@pytest.mark.parametrize(
    ("num_blocks", "num_requests"),
    [
        pytest.param(100_000, 65_536, marks=pytest.mark.long),
        pytest.param(3_000, 65_536, marks=pytest.mark.long),
        (3_000, 16_384),
    ],
)
def test_a_whole_window_is_planned_in_seconds(num_blocks: int, num_requests: int) -> None:
    rng = np.random.default_rng(0)
    params = [SamplingParams(temperature=0.0, max_tokens=m, ignore_eos=True) for m in range(1, 101)]
    preambles = rng.integers(0, 50_000, (57, 64)).astype(np.int32)
    requests = []
    for i in range(num_requests):
        chosen = params[i * 7 % 100]
        ids = np.concatenate([preambles[i % 57], rng.integers(0, 50_000, 30).astype(np.int32)])
        requests.append(Request(i, ids, chosen, chosen.max_tokens or 0, i))
    made = planner(
        num_blocks=num_blocks, block_size=16, max_num_seqs=256, max_num_batched_tokens=8192
    )
    started = time.process_time()
    plan = made.plan(requests)
    assert plan.estimate.steps > num_requests / 7
    assert time.process_time() - started < 15 * num_requests / 65_536
