"""The same tokens come out, whatever the batch, the chunks, the blocks, the cache and the depth."""

from __future__ import annotations

import pytest

from tests.scheduler.runs import check_random_run


def test_random_runs_give_what_each_request_gives_alone() -> None:
    num_preemptions = sum(check_random_run(seed) for seed in range(130))
    assert num_preemptions > 25, "these settings are meant to run out of blocks"


@pytest.mark.long
@pytest.mark.parametrize("block", range(100))
def test_ten_thousand_random_runs(block: int) -> None:
    for seed in range(100_000 + block * 100, 100_000 + block * 100 + 100):
        check_random_run(seed)
