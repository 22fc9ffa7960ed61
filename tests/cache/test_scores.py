"""Scores beside blocks: found where there are enough, gone with their block, bounded in bytes."""

from __future__ import annotations

import numpy as np
import pytest

from quire.cache.pool import BlockPool
from quire.cache.scores import OVERHEAD, ScoreShelf
from quire.step import Scores, join_scores


def scores(lines: int, num_top: int = 0) -> Scores:
    return Scores(
        np.arange(lines, dtype=np.int32),
        np.zeros(lines, np.float32),
        np.ones(lines, np.int32),
        np.zeros((lines, num_top), np.int32),
        np.zeros((lines, num_top), np.float32),
    )


@pytest.mark.parametrize(
    ("kept", "asked", "enough"),
    [(0, 0, True), (2, 1, True), (1, 2, False), (-1, 50, True), (-1, -1, True), (50, -1, False)],
)
def test_an_entry_serves_whoever_asks_for_no_more(kept: int, asked: int, enough: bool) -> None:
    shelf = ScoreShelf()
    entry = shelf.promise(7, kept)
    assert shelf.find(7, asked) is (entry if enough else None)
    assert (shelf.promise(7, asked) is None) == enough


def test_an_entry_can_be_relied_on_before_it_is_filled() -> None:
    shelf = ScoreShelf()
    entry = shelf.promise(7, 0)
    assert entry is not None and entry.scores is None
    assert shelf.find(7, 0) is entry
    shelf.fill(7, entry, scores(4))
    assert entry.scores is not None and len(entry.scores) == 4


def test_lost_scores_are_not_found_and_can_be_promised_anew() -> None:
    shelf = ScoreShelf()
    entry = shelf.promise(7, 0)
    assert entry is not None
    shelf.lose(7, entry)
    assert entry.lost and shelf.find(7, 0) is None
    again = shelf.promise(7, 0)
    assert again is not None and again is not entry
    shelf.lose(7, entry)
    assert shelf.find(7, 0) is again, "the old promise has nothing to do with the new one"


def test_memory_is_bounded_and_the_longest_unused_goes_first() -> None:
    one = OVERHEAD + scores(4).nbytes
    shelf = ScoreShelf(most_bytes=3 * one)
    entries = {}
    for block in range(3):
        entries[block] = shelf.promise(block, 0)
        shelf.fill(block, entries[block], scores(4))  # type: ignore[arg-type]
    shelf.find(0, 0)
    entries[3] = shelf.promise(3, 0)
    shelf.fill(3, entries[3], scores(4))  # type: ignore[arg-type]
    assert [block for block in range(4) if shelf.find(block, 0)] == [0, 2, 3]
    assert shelf.num_bytes == 3 * one
    assert entries[1] is not None and entries[1].scores is not None, "who holds it can read it"
    for block in range(4):
        shelf.drop(block)
    assert shelf.num_bytes == 0 and len(shelf) == 0


def test_what_is_kept_keeps_no_larger_array_alive() -> None:
    shelf, large = ScoreShelf(), scores(1000)
    entry = shelf.promise(0, 0)
    assert entry is not None
    shelf.fill(0, entry, large.part(10, 14))
    assert entry.scores is not None
    assert all(array.base is None for array in entry.scores.arrays())


def test_scores_go_with_their_block() -> None:
    pool = BlockPool(2, block_size=2)
    tokens = np.array([1, 2, 3], np.int32)
    block = pool.take(1)
    pool.publish(block[None, :1], "", tokens[:2])
    [serial] = pool.serials(tokens)
    pool.scores.promise(serial, 0)
    pool.release(block)
    assert pool.scores.find(serial, 0) is not None
    pool.take(2)
    assert len(pool.scores) == 0


def test_forgetting_the_cache_forgets_the_scores() -> None:
    pool = BlockPool(2, block_size=2)
    pool.scores.promise(0, 0)
    assert pool.forget_cache() and len(pool.scores) == 0


def test_parts_and_joins_of_scores() -> None:
    whole = scores(6, num_top=3)
    joined = join_scores([whole.part(0, 2), whole.part(2, 6)])
    assert [a.tolist() for a in joined.arrays()] == [a.tolist() for a in whole.arrays()]
    fewer = whole.part(1, 4, num_top=2)
    assert len(fewer) == 3 and fewer.top_ids.shape == (3, 2)
    assert fewer.token_ids.tolist() == [1, 2, 3]
