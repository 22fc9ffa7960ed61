"""The rule of beam search, against every text there is and against small cases worked by hand."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.scheduler.beam_rule import BeamSearch, SearchRules
from quire.step import Floats
from tests.fake_beams import expected_beams, logprobs_after
from tests.scheduler.beam_runs import chain_of
from tests.scheduler.runs import make_request

VOCAB = 4


def table(seed: int, tokens: list[int]) -> Floats:
    """Logprobs after some tokens: anything, but always the same."""
    rng = np.random.default_rng([seed, len(tokens), *tokens])
    scores = rng.normal(scale=2, size=VOCAB).astype(np.float32)
    return scores - np.float32(np.log(np.exp(scores).sum()))


def run(rules: SearchRules, logprobs_of: Callable[[list[int]], Floats]) -> BeamSearch:
    """A search in which every beam offers its best tokens."""
    search = BeamSearch(rules)
    while not search.over:
        rows = [logprobs_of(beam.token_ids().tolist()) for beam in search.beams]
        values = np.stack(rows)
        order = np.argsort(-values, axis=1, kind="stable")[:, : rules.num_candidates]
        search.advance(order.astype(np.int32), np.take_along_axis(values, order, 1))
    return search


def texts(search: BeamSearch) -> list[list[int]]:
    return [answer.beam.token_ids().tolist() for answer in search.answers]


def one(values: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """The offer of one beam, tokens numbered from 0 on."""
    return np.arange(len(values), dtype=np.int32)[None], np.array([values], np.float32)


@pytest.mark.parametrize("seed", range(20))
def test_beams_wide_enough_for_everything_find_the_best_text_of_all(seed: int) -> None:
    most, end = 3, 0
    rules = SearchRules(VOCAB**most, most, frozenset({end}), 1.0, "never")
    best, best_score = None, -np.inf
    for length in range(1, most + 1):
        for text in product(range(VOCAB), repeat=length):
            if end in text[:-1] or (length < most and text[-1] != end):
                continue
            score = sum(float(table(seed, list(text[:i]))[t]) for i, t in enumerate(text)) / length
            if score > best_score:
                best, best_score = list(text), score
    search = run(rules, lambda tokens: table(seed, tokens))
    assert texts(search)[0] == best
    assert float(search.answers[0].score) == pytest.approx(best_score, abs=1e-5)


@given(
    seed=st.integers(0, 2**20),
    width=st.integers(1, 5),
    max_tokens=st.integers(1, 7),
    ends=st.sets(st.integers(0, 20), max_size=3),
    penalty=st.sampled_from([1.0, 0.0, 2.0, -0.5]),
    early=st.sampled_from([False, True, "never"]),
)
def test_it_equals_a_search_over_the_whole_vocabulary(
    seed: int, width: int, max_tokens: int, ends: set[int], penalty: float, early: bool | str
) -> None:
    rules = SearchRules(width, max_tokens, frozenset(ends), penalty, early)
    request = make_request(0, [seed], max_tokens)
    expected = expected_beams(request, rules, chain_of, vocab=29)
    search = run(rules, lambda tokens: logprobs_after(chain_of([seed, *tokens]), 29))
    assert texts(search) == [found.tokens for found in expected]
    assert [a.score for a in search.answers] == [found.score for found in expected]
    assert [a.by_length for a in search.answers] == [f.reason == "length" for f in expected]


def test_an_end_outside_the_best_width_is_no_answer() -> None:
    search = BeamSearch(SearchRules(2, 5, frozenset({2})))
    search.advance(*one([-1.0, -2.0, -2.5, -3.0]))
    assert search.answers == [] and texts_of_beams(search) == [[0], [1]]


def texts_of_beams(search: BeamSearch) -> list[list[int]]:
    return [beam.token_ids().tolist() for beam in search.beams]


def test_an_end_among_the_best_is_an_answer_and_the_next_best_lives_instead() -> None:
    search = BeamSearch(SearchRules(2, 5, frozenset({0})))
    search.advance(*one([-1.0, -2.0, -2.5, -3.0]))
    assert texts(search) == [[0]] and texts_of_beams(search) == [[1], [2]]
    assert not search.over


def two(first: list[float], second: list[float]) -> tuple[np.ndarray, np.ndarray]:
    tokens = np.stack([np.arange(len(first), dtype=np.int32)] * 2)
    return tokens, np.array([first, second], np.float32)


@pytest.mark.parametrize(
    ("early", "penalty", "over"),
    [
        # Answers -1.0 and -1.1, the best beam -2.6 after two tokens: -1.3 each.
        (True, 1.0, True),
        (False, 1.0, True),
        # Of ten tokens it could be -0.26 each.
        ("never", 1.0, False),
        ("never", 0.0, True),
        ("never", -1.0, True),
    ],
)
def test_when_it_stops_looking(early: bool | str, penalty: float, over: bool) -> None:
    search = BeamSearch(SearchRules(2, 10, frozenset({0}), penalty, early))
    search.advance(*one([-1.0, -1.9, -1.95, -9.0]))
    assert not search.over
    search.advance(*two([-0.3, -0.7, -0.8, -9.0], [-5.0, -1.0, -1.1, -9.0]))
    assert len(search.answers) == 2
    assert search.over is over


def test_a_single_beam_is_greedy() -> None:
    search = BeamSearch(SearchRules(1, 10, frozenset({0}), 1.0, "never"))
    search.advance(*one([-3.0, -0.1]))
    search.advance(*one([-0.1, -3.0]))
    assert search.over and [t[-1] for t in texts(search)] == [0]


def test_forbidden_tokens_are_never_chosen_and_fewer_beams_may_live() -> None:
    search = BeamSearch(SearchRules(3, 10))
    search.advance(*one([-1.0, -2.0, -np.inf, -np.inf]))
    assert texts_of_beams(search) == [[0], [1]]
    search.advance(*two([-np.inf] * 4, [-1.0, -np.inf, -np.inf, -np.inf]))
    assert texts_of_beams(search) == [[1, 0]]
    search.advance(*one([-np.inf] * 4))
    assert search.over and search.answers == []


@pytest.mark.parametrize("penalty", [1000.0, -1000.0])
def test_an_absurd_penalty_still_ends(penalty: float) -> None:
    search = run(SearchRules(2, 4, frozenset({0}), penalty), lambda tokens: table(7, tokens))
    assert search.over and len(search.answers) == 2
    assert not any(np.isnan(a.score) for a in search.answers)


def test_the_trail_knows_every_token_and_what_else_could_have_stood_there() -> None:
    search = run(SearchRules(2, 3), lambda tokens: table(3, tokens))
    for answer in search.answers:
        assert answer.beam.trail is not None
        so_far: list[int] = []
        total = np.float32(0)
        for step in answer.beam.trail.steps():
            values = table(3, so_far)
            assert step.logprobs[step.place] == values[step.token]
            assert step.candidates[step.place] == step.token
            total += values[step.token]
            so_far.append(step.token)
        assert answer.beam.score == total
