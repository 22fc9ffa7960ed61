"""Rows that guess on the device draw the tokens of rows that do not, in fewer passes."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

import tests.backends.triton.conftest  # noqa: F401 - makes the interpreter work, before any kernel
from quire.backends.ops import HeadShape
from quire.config import EngineConfig, Speculation
from quire.executor.cpu.local import LocalExecutor
from quire.executor.cuda.graphs import GuessPlaces
from quire.request import Request
from quire.sampling.keys import noise_key
from quire.sampling_params import SamplingParams
from quire.scheduler import groups
from quire.scheduler.device_guesses import DeviceGuesses
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.sequence import Sequence
from quire.steps.row_schema import DROPPED, FAILED, RESTS, Column
from tests.executor.cuda.looping import LOOPING, looping_weights
from tests.executor.cuda.plain import PlainExecutor, PlainOps, answers
from tests.executor.cuda.test_interpreted import DEVICE, InterpretedExecutor, columns_of
from tests.executor.harness import told
from tests.specs import small_config

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
WEIGHTS = looping_weights()
GUESSING = Speculation(num_tokens=16, shortest=1, longest=8, device_lines=16)
GREEDY: dict[str, Any] = {"temperature": 0.0}
LOOSE: dict[str, Any] = {"temperature": 0.3, "logprobs": 2, "n": 2}
BIASED: dict[str, Any] = {"temperature": 0.0, "logit_bias": {3: 1.0}, "min_tokens": 30}
PENALISED: dict[str, Any] = {"temperature": 0.0, "repetition_penalty": 1.1, "logprobs": 0}


def asked(kinds: list[dict[str, Any]], *, most: int = 70, count: int = 4) -> list[Request]:
    """Of lengths that are all different; the odd ones have stop ids that end them in a loop."""
    rng, made = random.Random(4), []
    for number in range(count):
        ids = np.array([rng.randrange(200) for _ in range(rng.randint(2, 30))], np.int32)
        params = SamplingParams(max_tokens=most - 3 * number, **kinds[number % len(kinds)])
        stops = frozenset({31, 100 + number}) if number % 2 else frozenset()
        made.append(
            Request(number, ids, params, most - 3 * number, noise_key(number), frozenset(), stops)
        )
    return made


def expected(requests: list[Request]) -> list[Sequence]:
    plain = small_config(num_blocks=256)
    return answers(LocalExecutor(plain, LOOPING, dict(WEIGHTS)), plain, requests)


def check(executor: Any, config: EngineConfig, requests: list[Request]) -> Scheduler:
    seen: list[Scheduler] = []
    got = answers(executor, config, requests, seen=seen)
    for one, wanted in zip(got, expected(requests), strict=True):
        assert one.output_ids.tolist() == wanted.output_ids.tolist()
        assert (one.finish_reason, one.stop_reason) == (wanted.finish_reason, wanted.stop_reason)
        assert told(one.logprobs)[0] == told(wanted.logprobs)[0]
        np.testing.assert_allclose(told(one.logprobs)[1], told(wanted.logprobs)[1], atol=1e-4)
    assert isinstance(seen[0].guesses, DeviceGuesses)
    return seen[0]


@pytest.mark.parametrize(
    "kinds",
    [[GREEDY, LOOSE, GREEDY, BIASED], [GREEDY, GREEDY, GREEDY, PENALISED]],
    ids=["drawn", "penalised"],
)
@pytest.mark.parametrize(("depth", "repeat", "num_blocks"), [(1, 1, 128), (2, 32, 128), (2, 8, 64)])
def test_guesses_bring_the_tokens_of_one_step_at_a_time(
    kinds: list[dict[str, Any]], depth: int, repeat: int, num_blocks: int
) -> None:
    config = small_config(
        depth=depth, max_repeat=repeat, num_blocks=num_blocks, speculation=GUESSING
    )
    scheduler = check(PlainExecutor(config, LOOPING, WEIGHTS), config, asked(kinds))
    # Where blocks are short the row with penalties is the last, and it does not guess.
    least = -1 if PENALISED in kinds and num_blocks == 64 else 20
    assert scheduler.guesses.num_guessed >= scheduler.guesses.num_accepted > least


def test_a_single_row_guesses_many_tokens_at_once() -> None:
    config = small_config(depth=2, max_repeat=32, num_blocks=128, speculation=GUESSING)
    [request] = asked([GREEDY], most=200, count=1)
    guesses = check(PlainExecutor(config, LOOPING, WEIGHTS), config, [request]).guesses
    assert guesses.num_accepted > 130


@pytest.mark.interpreted
def test_the_kernels_draw_the_tokens_of_the_plain_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that guesses is a group of its own, whose blocks are read once for all its lines."""
    monkeypatch.setattr(groups, "LEAST_ALONE", 16)
    config = small_config(max_repeat=4, num_blocks=64, block_size=16, speculation=GUESSING)
    loop = np.array([*range(9), *range(9)], np.int32)
    request = Request(
        1, loop, SamplingParams(max_tokens=13, **GREEDY), 13, noise_key(1), frozenset()
    )
    scheduler = check(InterpretedExecutor(config, LOOPING, WEIGHTS), config, [request])
    assert scheduler.guesses.num_accepted > 2


def guess_places(resting: int) -> GuessPlaces:
    """Three guesses each: rows 3, 0 and 5 know what comes next, 2 rests, 1 does not guess."""
    histories = torch.zeros(16, 64, dtype=torch.int32, device=DEVICE)
    places = GuessPlaces.make(8, 3, 2, resting, histories)
    places.rows[:5] = torch.tensor([3, 0, 5, 2, 1], device=DEVICE)
    for place, known in enumerate([[7, 13, 21, 4, 9, 13], [10, 8, 8, 10], [15, 1, 2, 15]]):
        places.histories[place, : len(known)] = torch.tensor(known, device=DEVICE).int()
        places.lengths[place] = len(known)
    return places


def test_the_ends_of_a_step_with_guesses_are_what_plain_torch_says() -> None:
    from quire.executor.cuda.triton_ops import TritonOps

    shape = HeadShape(2, 1, 16, 4, torch.float32)
    drawn = [[21, 4, 9, 1], [8, 8, 9, 1], [1, 2, 15, 1], [1, 1, 1, 1], [22, 0, 0, 0]]
    tokens = torch.tensor(drawn + [[0] * 4] * 3, device=DEVICE).flatten()
    failed = torch.zeros(32, dtype=torch.bool, device=DEVICE)
    seen = []
    for make in (TritonOps, PlainOps):
        columns = columns_of(8)
        # Row 3 may stop with its next token, which is 21; row 5 has one token left.
        places = guess_places(columns.resting)
        ops = make(columns, frozenset(), shape.block_size)
        fed = ops.feed_guesses(places, 1, 3, None)
        before = [fed.token_ids[fed.rows >= 0], fed.positions, fed.slots[0], fed.rows]
        before = [one.clone() for one in before]
        ops.accept_guesses(places, fed, tokens, failed)
        again = ops.feed_guesses(places, 1, 3, None)
        after = [again.rows, again.token_ids[again.rows >= 0], places.made[0], places.step]
        seen.append([*before, *after, columns.ints, places.lengths, places.histories])
    for ours, plain in zip(*seen, strict=True):
        assert ours.tolist() == plain.tolist()
    made = seen[0][6].view(8, 4).tolist()
    assert made[:3] == [[21, *[DROPPED] * 3], [8, 8, 9, DROPPED], [1, *[RESTS] * 3]]
    assert made[3:5] == [[RESTS] * 4, [22, *[RESTS] * 3]]
    assert seen[0][9][:3].tolist() == [7, 7, 5]


def test_a_row_that_fails_after_a_right_guess_fails() -> None:
    columns = columns_of(8)
    places, shape = guess_places(columns.resting), HeadShape(2, 1, 16, 4, torch.float32)
    from quire.executor.cuda.triton_ops import TritonOps

    ops = TritonOps(columns, frozenset(), shape.block_size)
    fed = ops.feed_guesses(places, 1, 3, None)
    failed = torch.arange(32, device=DEVICE) == 5
    tokens = torch.full((32,), 8, device=DEVICE)
    ops.accept_guesses(places, fed, tokens, failed)
    assert places.made[0, 4:8].tolist() == [8, FAILED, DROPPED, DROPPED]
    assert int(columns.ints[Column.FROZEN, 0]) == 1
