"""Random runs that mix searches with everything else, over the fake executor."""

from __future__ import annotations

import random
from dataclasses import replace

from quire.cache.groups import ONE_GROUP, Windows, blocks_held, window_groups
from quire.engine import Engine
from quire.request import Request
from quire.scheduler.beam_rule import SearchRules
from quire.scheduler.beams import BeamGroup
from quire.scheduler.sequence import Sequence
from tests.fake_beams import Found, FussyGuide, expected_beams
from tests.fakes import VOCAB, expected_output, mix
from tests.scheduler.runs import (
    drain,
    is_guided,
    make_request,
    random_requests,
    random_setting,
    samples_of,
)

Search = tuple[Request, SearchRules]


def chain_of(tokens: list[int]) -> int:
    chain = 0
    for position, token in enumerate(tokens):
        chain = mix(chain, token, position)
    return chain


def lead_of(request: Request, rules: SearchRules, order: int = 0, num_best: int = 0) -> Sequence:
    lead = BeamGroup(rules, request, order, num_best=num_best or rules.width).lead
    lead.guide = FussyGuide() if is_guided(request) else None
    return lead


def expected_answers(request: Request, rules: SearchRules) -> list[Found]:
    return expected_beams(request, rules, chain_of, vocab=VOCAB, guided=is_guided(request))


def random_search(rng: random.Random, number: int, preamble: list[int]) -> Search:
    prompt = preamble + [rng.randrange(VOCAB) for _ in range(rng.randint(1, 12))]
    max_tokens = rng.randint(1, 20)
    stops = frozenset(rng.sample(range(VOCAB), rng.choice([0, 1, 3, 30])))
    request = make_request(
        number,
        prompt,
        max_tokens,
        stop_ids=stops,
        priority=rng.choice([0, 0, 1]),
        guided=rng.random() < 0.3,
    )
    rules = SearchRules(
        width=rng.choice([1, 2, 3, 4, 8]),
        max_tokens=max_tokens,
        end_ids=stops,
        length_penalty=rng.choice([1.0, 1.0, 0.0, 2.0, -0.5]),
        early_stopping=rng.choice([False, False, True, "never"]),
    )
    return request, rules


def blocks_of(
    request: Request, rules: SearchRules, block_size: int, windows: Windows = ONE_GROUP
) -> int:
    """As many as a search can need at once: every beam its own outputs, and a copy. Behind a
    window nothing of the prompt is kept."""
    own = rules.width * (-(-rules.max_tokens // block_size) + 2)
    prompt = -(-request.num_prompt // block_size)
    limited = sum(
        kind.count * (min(prompt, kind.most_held(block_size)) + own)
        for kind in window_groups(windows)
    )
    return windows.count(None) * (prompt + own) + limited


def check_group(sequence: Sequence, request: Request, rules: SearchRules) -> None:
    group = sequence.group
    assert group is not None and sequence.error is None
    expected = expected_answers(request, rules)
    found = [(a.output_ids.tolist(), a.finish_reason) for a in group.answers]
    assert found == [(e.tokens, e.reason) for e in expected]
    assert [a.score for a in group.search.answers] == [e.score for e in expected]
    for answer in group.answers:
        told = [token for part in answer.logprobs for token in part.token_ids.tolist()]
        assert told == answer.output_ids.tolist()


def check_everything_returned(engine: Engine) -> None:
    pool, rows = engine.scheduler.pool, engine.scheduler.rows
    assert pool.num_free == pool.num_blocks and not pool.holders.any()
    assert rows.num_free == rows.capacity


def check_random_beams(seed: int, windows: tuple[Windows, ...] = (ONE_GROUP,)) -> int:
    """Searches and samples, mixed: each must give what it gives alone; returns preemptions.

    Some settings have fewer rows than a search has beams, which then take turns.
    """
    rng = random.Random(seed)
    requests = random_requests(rng)[: rng.choice([0, 3, 12])]
    preamble = [rng.randrange(5) for _ in range(rng.randint(0, 24))]
    searches = [random_search(rng, 100 + i, preamble) for i in range(rng.randint(1, 5))]
    longest = max(r.num_prompt + r.max_tokens for r in [*requests, *(r for r, _ in searches)])
    setting = random_setting(rng, longest, windows)
    widest = max(rules.width for _, rules in searches) if rng.random() < 0.6 else 1
    size, groups = setting.block_size, setting.windows
    least = max(blocks_of(*search, size, groups) for search in searches)
    setting = replace(
        setting,
        max_num_seqs=max(setting.max_num_seqs, widest),
        max_num_batched_tokens=max(setting.max_num_batched_tokens, widest),
        num_blocks=max(blocks_held(groups, size, longest), least) + rng.choice([0, 0, 2, 40]),
    )
    engine = setting.engine()
    order = list(range(len(requests) + len(searches)))
    rng.shuffle(order)
    for i, place in enumerate(order):
        if place < len(requests):
            engine.add(samples_of(requests[place], i))
        else:
            engine.add([lead_of(*searches[place - len(requests)], order=i)])
    done = drain(engine)
    for request in requests:
        for sample in range(request.params.n):
            sequence = done.pop((request.number, sample))
            expected = expected_output(request, sample, guided=is_guided(request))
            assert sequence.output_ids.tolist() == expected, seed
    for request, rules in searches:
        check_group(done.pop((request.number, 0)), request, rules)
    assert not done
    check_everything_returned(engine)
    return engine.scheduler.num_preemptions
