"""Which tokens are guessed ahead, when that is worth it, and what it must not change."""

from __future__ import annotations

import dataclasses
import random
from itertools import product

import numpy as np
import pytest

import quire.scheduler.guesses as guesses_module
from quire.config import Speculation
from quire.request import Ints, Request
from quire.scheduler.guesses import allot, can_guess, continuation, look_up
from quire.scheduler.pass_times import PassTimes
from quire.scheduler.sequence import Sequence
from tests.fakes import FakeGuide, expected_output
from tests.scheduler.runs import Setting, drain, make_request, run_all
from tests.scheduler.scripted import USUAL, Machine, Text, write


def ints(*values: int) -> Ints:
    return np.array(values, np.int32)


# ---------------------------------------------------------------------------- what is guessed


@pytest.mark.parametrize(
    ("tokens", "shortest", "longest", "expected"),
    [
        ((1, 2, 3, 9, 2, 3, 5, 1, 2, 3), 1, 8, (3, 3)),  # the longest, though [2 3] came later
        ((1, 2, 3, 9, 2, 3, 5, 1, 2, 3), 1, 2, (6, 2)),  # the latest of two as long
        ((1, 2, 3, 9, 4, 3), 1, 8, (3, 1)),
        ((1, 2, 3, 9, 4, 3), 2, 8, (0, 0)),
        ((1, 2, 3), 1, 8, (0, 0)),
        ((7, 7, 7, 7), 1, 8, (3, 3)),
        ((5,), 1, 8, (0, 0)),
        ((4, 4), 1, 8, (1, 1)),
    ],
)
def test_the_place_with_the_longest_agreement_is_found(
    tokens: tuple[int, ...], shortest: int, longest: int, expected: tuple[int, int]
) -> None:
    assert look_up(ints(*tokens), shortest, longest) == expected


def test_looking_up_agrees_with_comparing_all_places() -> None:
    rng = random.Random(5)
    for _ in range(300):
        tokens = [rng.randrange(3) for _ in range(rng.randint(1, 20))]
        longest, last = rng.randint(1, 5), len(tokens)
        best = (0, 0)
        for begin in range(1, last):
            agreed = 0
            while (
                agreed < min(longest, begin) and tokens[begin - 1 - agreed] == tokens[-1 - agreed]
            ):
                agreed += 1
            if agreed and agreed >= best[1]:
                best = (begin, agreed)
        assert look_up(ints(*tokens), 1, longest) == best


def test_what_repeats_itself_is_guessed_beyond_its_end() -> None:
    assert continuation(ints(1, 2, 3, 1, 2), 2, 7).tolist() == [3, 1, 2, 3, 1, 2, 3]
    assert continuation(ints(5, 6, 7, 8), 1, 2).tolist() == [6, 7]


# ---------------------------------------------------------------------------- whether it pays


def test_guesses_are_made_while_they_gain_more_than_they_cost() -> None:
    gains = [np.array([0.9, 0.8, 0.7]), np.array([0.3, 0.1, 0.0])]
    assert allot(gains, 2, 2, (1.0, 0.0)).tolist() == [3, 2]  # free positions
    assert allot(gains, 2, 2, (1.0, 0.02)).tolist() == [3, 1]
    assert allot(gains, 2, 2, (1.0, 1.0)).tolist() == [0, 0]
    # Beside many rows the same guesses would have to bring more.
    assert allot(gains, 200, 200, (1.0, 0.02)).tolist() == [0, 0]


def test_a_positions_cost_is_learned_from_the_passes_that_ran() -> None:
    times, rng = PassTimes(), random.Random(1)
    for _ in range(200):
        positions = rng.randint(1, 12)
        disturbed = 30.0 if rng.random() < 0.03 else 1.0
        times.observe(positions, (2.0 + 0.25 * positions) * rng.uniform(0.97, 1.03) * disturbed)
    fixed, each = times.line()
    assert fixed == pytest.approx(2.0, rel=0.25) and each == pytest.approx(0.25, rel=0.25)


def test_passes_of_one_size_leave_the_assumed_share() -> None:
    times = PassTimes()
    for _ in range(50):
        times.observe(1, 0.02)
    fixed, each = times.line()
    assert fixed + each == pytest.approx(0.02) and each == pytest.approx(0.03 * 0.02)


def copies(rng: random.Random, count: int) -> list[Text]:
    texts = []
    for _ in range(count):
        wanted = [rng.randrange(1000) for _ in range(60)]
        texts.append(([1, 2, *wanted, 3], wanted + wanted[:20]))
    return texts


def babble(rng: random.Random, count: int) -> list[Text]:
    """Common words come again and again, but what follows them is anybody's guess."""
    words, weights = range(400), [1 / (rank + 1) for rank in range(400)]
    return [
        (rng.choices(words, weights, k=40), rng.choices(words, weights, k=160))
        for _ in range(count)
    ]


@pytest.mark.parametrize("each", [0.1, 0.35, 1.0])
@pytest.mark.parametrize(("num_rows", "least"), [(1, 2.5), (4, 1.6)])
def test_copies_take_a_fraction_of_the_time(each: float, num_rows: int, least: float) -> None:
    texts, machine = copies(random.Random(3), num_rows), Machine(each=each)
    plain, guessed = write(texts, None, machine), write(texts, USUAL, machine)
    assert plain.num_guessed == 0
    assert plain.seconds / guessed.seconds > least
    assert guessed.num_accepted > 0.5 * guessed.num_guessed


# What a position costs, rows, and those that run at once: each with each with --long.
MACHINES = list(product([0.1, 1.0, 5.0], [(1, 256), (4, 2), (32, 256)]))


@pytest.mark.parametrize(
    ("each", "rows"),
    [
        pytest.param(*one, marks=() if i in (0, 4, 8) else pytest.mark.long)
        for i, one in enumerate(MACHINES)
    ],
)
def test_a_text_that_does_not_repeat_itself_loses_less_than_two_percent(
    each: float, rows: tuple[int, int]
) -> None:
    (num_rows, max_num_seqs), ratios = rows, []
    for seed in range(3):
        texts, machine = babble(random.Random(seed), num_rows), Machine(each=each)
        plain = write(texts, None, machine, max_num_seqs=max_num_seqs)
        guessed = write(texts, USUAL, machine, max_num_seqs=max_num_seqs)
        ratios.append(plain.seconds / guessed.seconds)
    assert np.mean(ratios) > 0.98, ratios


def test_a_row_that_will_not_be_the_last_does_not_guess() -> None:
    """It would only finish earlier beside the others; unless somebody waits for its row."""
    rng = random.Random(2)
    [short], [long] = copies(rng, 1), babble(rng, 1)
    texts = [(short[0], short[1][:50]), long]
    assert write(texts, USUAL, Machine()).num_accepted < 40
    awaited = write([*texts, ([5], [6])], USUAL, Machine(), max_num_seqs=2)
    assert awaited.num_accepted > 40


# ---------------------------------------------------------------------------- who may guess


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, True),
        ({"temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1}, True),
        ({"logprobs": 3, "min_tokens": 2, "stop": ["x"], "ignore_eos": True}, True),
        ({"logit_bias": {3: 1.0}, "allowed_token_ids": [1, 2]}, True),
        ({"presence_penalty": 0.5}, False),
        ({"frequency_penalty": -0.5}, False),
        ({"repetition_penalty": 1.1}, False),
        ({"bad_words": ["x"]}, False),
    ],
)
def test_rows_whose_draws_remember_tokens_do_not_guess(
    params: dict[str, object], expected: bool
) -> None:
    assert can_guess(Sequence(make_request(1, [1, 2], 5, **params))) is expected


def test_neither_do_rows_that_somebody_looks_after() -> None:
    request = make_request(1, [1, 2], 5)
    assert not can_guess(Sequence(request, guide=FakeGuide()))
    assert not can_guess(Sequence(dataclasses.replace(request, processors=(print,))))
    assert not can_guess(Sequence(dataclasses.replace(request, continuations=(ints(1),))))


def test_penalised_rows_are_left_alone_in_a_run() -> None:
    texts = copies(random.Random(3), 2)
    assert write(texts, USUAL, Machine(), presence_penalty=0.5).num_guessed == 0


# ---------------------------------------------------------------------------- what must not change


def looping(number: int, max_tokens: int, **options: object) -> Request:
    """A request for which the fake model knows three tokens only: its noise key is 0 modulo 3."""
    request = make_request(1 + 3 * number, [5, 5, 5], max_tokens, **options)
    assert request.noise_key % 3 == 0
    return request


def setting(**changes: object) -> Setting:
    usual: dict[str, object] = {
        "num_blocks": 200,
        "block_size": 4,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "max_repeat": 1,
        "depth": 1,
        "caching": True,
        "speculation": Speculation(5, 1, 3),
    }
    return Setting(**{**usual, **changes})  # type: ignore[arg-type]


def test_random_runs_guess_and_are_right_now_and_then() -> None:
    """The runs of test_random_runs.py would prove little otherwise."""
    guessed, accepted = 0, 0
    for depth in (1, 2, 3):
        engine = setting(depth=depth, max_repeat=depth).engine()
        requests = [looping(i, 40, n=2) for i in range(3)]
        run_all(engine, requests)
        guesses = engine.scheduler.guesses
        assert 0 < guesses.num_accepted < guesses.num_guessed
        guessed, accepted = guessed + guesses.num_guessed, accepted + guesses.num_accepted
    assert accepted > 0.1 * guessed


def test_rows_that_come_while_guesses_are_on_their_way_change_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With more rows than may guess, others are planned beside one whose guesses are not back."""
    monkeypatch.setattr(guesses_module, "MOST_ROWS", 1)
    met = 0
    for moment in range(2, 24):
        engine, first, second = setting(depth=4).engine(), looping(0, 30), looping(1, 30)
        engine.add([Sequence(first)])
        done = {}
        for _ in range(moment):
            done.update({s.request.number: s for s in engine.step().ended})
        met += bool(engine._in_flight and engine._in_flight[-1].plan.prefill[:1])
        engine.add([Sequence(second)])
        done |= {number: s for (number, _), s in drain(engine).items()}
        for request in (first, second):
            assert done[request.number].output_ids.tolist() == expected_output(request, 0)
    assert met > 3


def test_no_more_is_guessed_than_the_answer_may_still_hold() -> None:
    engine = setting(max_num_seqs=1, speculation=Speculation(20, 1, 3)).engine()
    engine.add([Sequence(looping(1, 12))])
    drain(engine)
    for plan in engine.executor.plans:  # type: ignore[attr-defined]
        for s in plan.prefill:
            assert s.start + len(s.token_ids) < 3 + 12


def test_guesses_take_no_block_from_anybody() -> None:
    """A pool that just holds both rows: whoever finds no block for guesses makes none."""
    engine = setting(num_blocks=2 * 11, max_num_seqs=2).engine()
    requests = [looping(i, 40) for i in range(2)]
    run_all(engine, requests)
    assert engine.scheduler.num_preemptions == 0
    assert engine.scheduler.guesses.num_guessed > 0
