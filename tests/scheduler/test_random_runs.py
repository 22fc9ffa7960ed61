"""The same tokens come out, whatever the batch, the chunks, the blocks, the cache and the depth."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.fakes import VOCAB
from tests.scheduler.runs import check_random_run, check_run, make_request, random_setting


def test_random_runs_give_what_each_request_gives_alone() -> None:
    num_preemptions = sum(check_random_run(seed) for seed in range(28))
    assert num_preemptions > 25, "these settings are meant to run out of blocks"


def test_chats_go_on_from_answers_that_stop_ids_ended() -> None:
    """Prompts of a later turn find blocks that an answer filled to their last slot, though that
    token was drawn and never computed."""
    num_cached = 0
    for seed in range(8):
        rng = random.Random(seed)
        some = random_setting(rng, 40)
        engine = replace(some, caching=True, num_blocks=200, depth=1 + seed % 3).engine()
        turn = [make_request(i, [i, 1, 2], 24, stop_ids=range(0, VOCAB, 9)) for i in range(6)]
        for _ in range(2):
            done = check_run(engine, turn, seed)
            turn = [
                make_request(number, [*sequence.token_ids.tolist(), 7], 2)
                for number, sequence in enumerate(done, start=10)
            ]
            num_cached += sum(sequence.num_cached for sequence in done)
    assert num_cached > 100


@pytest.mark.long
@pytest.mark.parametrize("block", range(100))
def test_ten_thousand_random_runs(block: int) -> None:
    for seed in range(100_000 + block * 100, 100_000 + block * 100 + 100):
        check_random_run(seed)
