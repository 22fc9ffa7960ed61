"""When plans let a device guess by itself: by what rows wrote, and by nothing that is measured."""

from __future__ import annotations

import random

import numpy as np
import pytest

from quire.config import Speculation
from quire.scheduler.device_guesses import MOST_ROWS, tokens_a_pass
from tests.fakes import expected_output
from tests.scheduler.runs import run_all
from tests.scheduler.scripted import Machine, write
from tests.scheduler.test_guesses import babble, copies, looping, setting

GUESSING = Speculation(num_tokens=16, shortest=1, longest=8, device_lines=16)
# A pass of 16 lines takes 1.4 times what one of 4 does, as measured for a small model.
GPU = Machine(fixed=1.0, each=0.034)


@pytest.mark.parametrize(("num_rows", "least"), [(1, 2.0), (4, 1.6), (16, 1.2)])
def test_copies_take_a_fraction_of_the_time(num_rows: int, least: float) -> None:
    texts = copies(random.Random(3), num_rows)
    plain = write(texts, None, GPU, max_repeat=32)
    guessed = write(texts, GUESSING, GPU, max_repeat=32)
    assert plain.num_guessed == 0
    assert plain.seconds / guessed.seconds > least
    assert 0.5 * guessed.num_guessed < guessed.num_accepted <= guessed.num_guessed


@pytest.mark.parametrize("num_rows", [1, 4, 16])
def test_a_text_that_does_not_repeat_itself_loses_less_than_two_percent(num_rows: int) -> None:
    ratios = []
    for seed in range(4):
        texts = babble(random.Random(seed), num_rows)
        plain = write(texts, None, GPU, max_repeat=32)
        ratios.append(plain.seconds / write(texts, GUESSING, GPU, max_repeat=32).seconds)
    assert np.mean(ratios) > 0.98, ratios


def test_more_rows_than_a_few_do_not_guess_and_penalised_ones_leave_it_to_others() -> None:
    texts = copies(random.Random(3), MOST_ROWS + 1)
    assert write(texts, GUESSING, GPU, max_repeat=8).num_guessed == 0
    alone = write(texts[:2], GUESSING, GPU, max_repeat=8, presence_penalty=0.5)
    assert alone.num_guessed == 0


def test_a_plan_may_hold_any_mix_of_luck_and_depth() -> None:
    """The fake model sees every block that is read and written."""
    accepted = 0
    for depth, repeat, blocks in ((1, 1, 200), (2, 8, 200), (3, 32, 200), (2, 8, 80)):
        wanted = {"speculation": GUESSING, "num_blocks": blocks}
        engine = setting(depth=depth, max_repeat=repeat, max_num_seqs=6, **wanted).engine()
        requests = [looping(i, 100 + 7 * i, n=2) for i in range(3)]
        done = run_all(engine, requests)
        for request in requests:
            for sample in range(2):
                told = done[request.number, sample].output_ids.tolist()
                assert told == expected_output(request, sample)
        accepted += engine.scheduler.guesses.num_accepted
    assert accepted > 0


def test_what_guesses_would_have_brought_is_found_in_what_was_written() -> None:
    loop = np.array([*range(5)] * 9, np.int32)
    assert tokens_a_pass(loop, 10, GUESSING) == 4.0
    assert tokens_a_pass(np.arange(40, dtype=np.int32), 10, GUESSING) == 1.0
    assert tokens_a_pass(loop[:12], 11, GUESSING) == 1.0  # too little to tell
