"""Scores are the same, whatever the batch, the chunks, the blocks, the cache and the depth."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from quire.cache.groups import ONE_GROUP, Windows
from quire.engine import Engine
from quire.errors import DoesNotFit, InvalidLogits
from quire.request import NamedTokens, Request
from quire.sampling_params import SamplingParams
from quire.scheduler.scoring import next_position, score_lead
from quire.scheduler.sequence import Sequence
from quire.step import Scores, StepPlan, join_scores
from tests.fakes import VOCAB, Done, FakeExecutor, expected_output, mix, scored
from tests.scheduler.runs import (
    Setting,
    drain,
    is_guided,
    make_request,
    random_requests,
    random_setting,
    samples_of,
)

ROOMY = Setting(
    num_blocks=200, block_size=4, max_num_seqs=16, max_num_batched_tokens=64, max_repeat=4,
    depth=1, caching=True,
)  # fmt: skip


def scoring_request(number: int, context: list[int], *continuations: list[int]) -> Request:
    return Request(
        number=number,
        prompt_ids=np.array(context, np.int32),
        params=SamplingParams(temperature=0, max_tokens=1),
        max_tokens=0,
        noise_key=0,
        continuations=tuple(np.array(ids, np.int32) for ids in continuations),
    )


def add(engine: Engine, requests: list[Request]) -> None:
    for order, request in enumerate(requests):
        if request.continuations:
            engine.add([score_lead(request, order)])
        else:
            engine.add(samples_of(request, order))


def run(engine: Engine, requests: list[Request]) -> dict[tuple[int, int], Sequence]:
    add(engine, requests)
    return drain(engine)


def chains_of(tokens: list[int]) -> list[int]:
    chains, chain = [], 0
    for position, token in enumerate(tokens):
        chain = mix(chain, token, position)
        chains.append(chain)
    return chains


def line(chain: int, token: int, num_top: int, named: list[int] | None = None) -> tuple[Any, ...]:
    logprob, rank, ids, logprobs = scored(chain, token, num_top, named or [])
    return token, logprob, rank, ids, logprobs


def lines(scores: Scores) -> list[tuple[Any, ...]]:
    return list(zip(*(array.tolist() for array in scores.arrays()), strict=True))


def check_continuations(request: Request, done: dict[tuple[int, int], Sequence]) -> None:
    context, tree = request.prompt_ids.tolist(), done[request.number, 0].tree
    assert tree is not None
    paths = [done.pop((request.number, path)) for path in range(len(tree.paths))]
    found = [lines(join_scores(path.scores)) for path in paths]
    for continuation, places in zip(request.continuations, tree.places, strict=True):
        ids = continuation.tolist()
        chains = chains_of(context + ids)[len(context) - 1 :]
        expected = [line(chain, token, 0) for chain, token in zip(chains, ids, strict=False)]
        assert [found[path][at] for path, at in places] == expected
    assert all(path.error is None and path.finish_reason == "length" for path in paths)


def check_prompt(request: Request, sequence: Sequence) -> None:
    prompt, num_top = request.prompt_ids.tolist(), request.params.prompt_logprobs or 0
    first = request.first_scored or 0
    places = zip(chains_of(prompt)[first:-1], prompt[1 + first :], strict=True)
    none: list[list[int]] = [[]] * len(prompt)
    named = none if request.named is None else request.named.ids.tolist()
    wanted = [line(c, token, num_top, named[i]) for i, (c, token) in enumerate(places)]
    assert (lines(join_scores(sequence.scores)) if sequence.scores else []) == wanted


def check_all(engine: Engine, requests: list[Request], done: Any, note: object = None) -> None:
    for request in requests:
        if request.continuations:
            check_continuations(request, done)
            continue
        for sample in range(request.params.n):
            sequence = done.pop((request.number, sample))
            expected = expected_output(request, sample, guided=is_guided(request))
            assert sequence.output_ids.tolist() == expected, note
            if request.first_scored is not None and sample == 0:
                check_prompt(request, sequence)
    assert not done
    pool = engine.scheduler.pool
    assert pool.num_free == pool.num_blocks and not pool.holders.any()
    scoring = engine.scheduler._scoring
    assert not scoring._promises and not scoring._borrowed


def random_mix(rng: random.Random) -> list[Request]:
    """Generation, prompt logprobs and scoring, over a few shared beginnings."""
    preambles = [[rng.randrange(5) for _ in range(rng.randint(1, 30))] for _ in range(3)]
    requests = random_requests(rng)
    for number in range(100, 100 + rng.randint(1, 8)):
        context = rng.choice(preambles) + [rng.randrange(5) for _ in range(rng.randint(0, 6))]
        requests.append(
            scoring_request(
                number,
                context,
                *([rng.randrange(5) for _ in range(rng.choice([1, 1, 2, 3, 20]))]
                  for _ in range(rng.choice([1, 2, 4, 20]))),
            )
        )  # fmt: skip
    for number in range(200, 200 + rng.randint(1, 8)):
        prompt = rng.choice(preambles) + [rng.randrange(5) for _ in range(rng.randint(0, 6))]
        num_top, n = rng.choice([0, 0, 2, 5]), rng.choice([1, 1, 3])
        one = make_request(number, prompt, rng.randint(1, 12), prompt_logprobs=num_top, n=n)
        requests.append(naming(one, rng) if rng.random() < 0.3 and len(prompt) > 1 else one)
    rng.shuffle(requests)
    return requests


def naming(request: Request, rng: random.Random) -> Request:
    """It asks about tokens of its own choice, too; or about these alone, from somewhere on."""
    first, width = rng.choice([0, rng.randrange(request.num_prompt - 1)]), rng.randint(1, 3)
    ids = [rng.sample(range(VOCAB), width) for _ in range(first, request.num_prompt - 1)]
    params = replace(request.params, prompt_logprobs=None) if first else request.params
    return replace(request, params=params, named=NamedTokens(first, np.array(ids, np.int32)))


def longest(requests: list[Request]) -> int:
    return max(
        r.num_prompt + max(r.max_tokens, *(len(c) for c in r.continuations), 0) for r in requests
    )


def check_random_mix(seed: int, windows: tuple[Windows, ...] = (ONE_GROUP,)) -> tuple[int, int]:
    """One random run; its preemptions, and the prompt tokens that scored rows did not compute."""
    rng = random.Random(seed)
    requests = random_mix(rng)
    engine = random_setting(rng, longest(requests), windows).engine()
    engine.scheduler.pool.scores.most_bytes = rng.choice([0, 5000, 1 << 20])
    done = run(engine, requests)
    cached = sum(
        s.num_cached for s in done.values() if s.request.params.prompt_logprobs is not None
    )
    check_all(engine, requests, done, seed)
    return engine.scheduler.num_preemptions, cached


def test_random_runs_score_what_each_request_scores_alone() -> None:
    runs = [check_random_mix(seed) for seed in range(20)]
    assert sum(preemptions for preemptions, _ in runs) > 15, "these are meant to run out of blocks"
    assert sum(cached for _, cached in runs) > 60, "some are meant to find scores in the cache"


@pytest.mark.long
@pytest.mark.parametrize("block", range(50))
def test_five_thousand_random_runs(block: int) -> None:
    for seed in range(500_000 + block * 100, 500_000 + block * 100 + 100):
        check_random_mix(seed)


def test_a_context_is_computed_once_whatever_the_number_of_continuations() -> None:
    context = list(range(30))
    for caching in (True, False):
        engine = replace(ROOMY, caching=caching).engine()
        request = scoring_request(0, context, [1, 2, 3], [4, 5, 6], [7], [8], [1, 9])
        done = run(engine, [request])
        # Two more tokens for each of two; the others begin as these do, or have one token.
        assert engine.executor.computed_tokens == 30 + 2 + 2
        assert len(done) == 2
        check_all(engine, [request], done)


@pytest.mark.parametrize("max_num_seqs", [1, 2, 3, 16])
def test_more_continuations_than_rows_still_compute_their_context_once(max_num_seqs: int) -> None:
    engine = replace(ROOMY, caching=False, max_num_seqs=max_num_seqs).engine()
    request = scoring_request(0, list(range(30)), *([i, i + 1, 5] for i in range(40)))
    done = run(engine, [request])
    # With one row alone, each has to come back for itself.
    once = 30 + 40 * 2
    assert engine.executor.computed_tokens == (once if max_num_seqs > 1 else once + 39 * 30)
    check_all(engine, [request], done)


def test_several_wide_contexts_share_few_rows() -> None:
    requests = [
        scoring_request(n, [n, *range(20)], *([i] * (2 + i % 3) for i in range(9)))
        for n in range(6)
    ]
    for depth in (1, 2, 3):
        engine = replace(ROOMY, max_num_seqs=4, depth=depth, caching=False).engine()
        check_all(engine, requests, run(engine, requests))


def test_a_pool_that_just_holds_one_continuation_scores_them_all() -> None:
    # 30 + 2 tokens in 8 blocks of 4: no block is left for a second copy of the context's end.
    requests = [scoring_request(n, [n, *range(29)], [1, 2, 3], [4, 5, 6], [7, 8]) for n in range(3)]
    for caching in (True, False):
        for rows in (1, 2, 16):
            engine = replace(ROOMY, num_blocks=8, caching=caching, max_num_seqs=rows).engine()
            check_all(engine, requests, run(engine, requests))


def test_a_context_longer_than_the_pool_fails_alone() -> None:
    engine = replace(ROOMY, num_blocks=5).engine()
    fine = scoring_request(0, [1, 2], [3, 4])
    long = scoring_request(1, list(range(30)), [1, 1], [2, 3])
    done = run(engine, [long, fine])
    assert isinstance(done.pop((1, 0)).error, DoesNotFit)
    assert isinstance(done.pop((1, 1)).error, DoesNotFit)
    check_all(engine, [fine], done)


def test_continuations_can_be_aborted_at_any_moment() -> None:
    for steps in range(1, 9):
        engine = replace(ROOMY, depth=2, max_num_batched_tokens=8, max_num_seqs=3).engine()
        request = scoring_request(0, list(range(10)), *([i, 1, 2] for i in range(6)))
        lead = score_lead(request, 0)
        engine.add([lead])
        for _ in range(steps):
            engine.step()
        engine.abort([lead])
        engine.drain()
        check_all(engine, [], {})


class NaNAfter(FakeExecutor):
    """Scores of one token are NaN."""

    def submit(self, plan: StepPlan) -> Done:
        result = super().submit(plan).result()
        for scores in result.scored.values():
            scores.logprobs[scores.token_ids == 13] = np.nan
        return Done(result)


def test_scores_that_are_not_numbers_fail_their_own_context() -> None:
    engine = ROOMY.engine()
    engine.executor.__class__ = NaNAfter
    bad, fine = scoring_request(0, [1, 2, 3], [4, 13], [5]), scoring_request(1, [1, 2], [3, 4])
    done = run(engine, [bad, fine])
    assert isinstance(done.pop((0, 0)).error, InvalidLogits)
    check_all(engine, [fine], done)


PROMPT = list(range(50, 80))


def test_prompt_logprobs_are_read_beside_the_blocks_that_hold_the_tokens() -> None:
    engine = ROOMY.engine()
    first = make_request(0, PROMPT, 2, prompt_logprobs=3)
    check_all(engine, [first], run(engine, [first]))
    before = engine.executor.computed_tokens
    again = [make_request(n, [*PROMPT[:22], n, n], 1, prompt_logprobs=n) for n in (1, 2, 3)]
    done = run(engine, again)
    # 22 tokens are five whole blocks; the score of the sixth's first token needs the fifth again.
    assert [done[n, 0].num_cached for n in (1, 2, 3)] == [16, 16, 16]
    assert engine.executor.computed_tokens - before == 3 * (24 - 16)
    check_all(engine, again, done)


def test_requests_of_one_step_share_scores_that_are_still_to_come() -> None:
    engine = ROOMY.engine()
    requests = [make_request(n, [*PROMPT[:22], n], 1, prompt_logprobs=0) for n in range(3)]
    done = run(engine, requests)
    assert [done[n, 0].num_cached for n in range(3)] == [0, 16, 16]
    check_all(engine, requests, done)


@pytest.mark.parametrize(("kept", "asked"), [(None, 0), (0, 1), (2, 3)])
def test_blocks_without_enough_scores_are_computed_again(kept: int | None, asked: int) -> None:
    engine = ROOMY.engine()
    run(engine, [make_request(0, PROMPT, 2, prompt_logprobs=kept)])
    again = make_request(1, PROMPT, 1, prompt_logprobs=asked)
    done = run(engine, [again])
    assert done[1, 0].num_cached == 0
    check_all(engine, [again], done)
    more = make_request(2, PROMPT, 1, prompt_logprobs=asked)
    done = run(engine, [more])
    assert done[2, 0].num_cached == 24, "now they have"
    check_all(engine, [more], done)


def test_scores_lost_with_their_row_are_computed_again_by_whoever_relied_on_them() -> None:
    engine = replace(ROOMY, depth=2).engine()
    lead = samples_of(make_request(0, PROMPT, 4, prompt_logprobs=1))
    reader = make_request(1, [*PROMPT, 3], 4, prompt_logprobs=1)
    engine.add(lead)
    engine.add(samples_of(reader, 1))
    engine.step()
    assert len(engine.executor.plans[-1].prefill) == 2, "both are meant to be in the first plan"
    engine.abort(lead)
    done = drain(engine)
    assert done[1, 0].num_cached > 0
    check_all(engine, [reader], done)


def test_the_next_position_to_score() -> None:
    request = scoring_request(0, [1, 2, 3], [4, 5], [6])
    lead = score_lead(request, 0)
    assert next_position(lead) == 2
    lead.num_scored = 2
    assert next_position(lead) == 3
    lead.num_scored = 3
    assert next_position(lead) is None
    named = replace(
        make_request(0, [1, 2, 3, 4], 2), named=NamedTokens(1, np.zeros((2, 1), np.int32))
    )
    assert next_position(samples_of(named)[0]) == 1
    plain = samples_of(make_request(0, [1, 2, 3], 2))[0]
    assert next_position(plain) is None
