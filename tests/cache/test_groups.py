"""Groups of layers with windows: what a hit needs, what goes with an evicted block, what fits."""

from __future__ import annotations

import random

import numpy as np
import pytest

from quire.cache.groups import Windows, blocks_held, most_tokens, window_groups
from quire.cache.pool import BlockPool

SIZE = 4


def longer(tokens: np.ndarray) -> np.ndarray:
    """With one token more: a match never covers the last."""
    return np.append(tokens, np.int32(99))


def blocks_of(pool: BlockPool, tokens: np.ndarray) -> np.ndarray:
    """Blocks [groups, count] that hold `tokens`, published and held."""
    blocks = pool.take_columns(len(tokens) // SIZE)
    pool.publish(blocks, "", tokens)
    return blocks


def test_groups_of_one_window_stand_beside_each_other() -> None:
    assert [(g.window, g.first, g.last) for g in window_groups((None, None, 6, 6, 9))] == [
        (6, 2, 4),
        (9, 4, 5),
    ]
    assert window_groups((None,)) == ()


@pytest.mark.parametrize("windows", [(None,), (None, 6), (5, 5), (None, 1), (None, None, 4, 17)])
def test_no_row_ever_sees_more_than_it_is_said_to_hold(windows: Windows) -> None:
    for length in range(1, 60):
        held = 0
        for window in windows:
            whole = (length - 1) // SIZE
            first = 0 if window is None else max(0, (whole * SIZE - window + 1) // SIZE)
            held += -(-length // SIZE) - first
        assert held <= blocks_held(windows, SIZE, length)
        longest = most_tokens(windows, SIZE, blocks_held(windows, SIZE, length), 60)
        assert longest >= length
        assert most_tokens(windows, SIZE, blocks_held(windows, SIZE, length), length) == length


def test_a_hit_needs_of_a_window_only_what_the_next_token_sees() -> None:
    pool, tokens = BlockPool(12, block_size=SIZE, windows=(None, 6)), np.arange(20, dtype=np.int32)
    blocks = blocks_of(pool, tokens)
    pool.release(blocks[1, :3])  # behind the window of token 20, which sees from 15 on
    pool.release(blocks[:, 3:])
    pool.release(blocks[0, :3])
    assert pool.num_free == 12
    taken = [int(pool.take(1)[0]) for _ in range(5)]  # two empty ones, then the oldest unused
    assert set(blocks[1, :3].tolist()) <= set(taken)
    hit = pool.match(longer(tokens))
    assert hit.blocks[0].tolist() == blocks[0].tolist()
    assert hit.blocks[1].tolist() == [-1, -1, -1, *blocks[1, 3:].tolist()]
    assert pool.num_idle_in(hit) == 7
    # A shorter beginning would need what is gone.
    assert len(pool.match(longer(tokens[:12]))) == 0


def test_a_block_missing_inside_the_window_shortens_the_hit() -> None:
    pool, tokens = BlockPool(12, block_size=SIZE, windows=(None, 6)), np.arange(20, dtype=np.int32)
    blocks = blocks_of(pool, tokens)
    pool.release(blocks[1, 3:4])  # the oldest unused
    pool.release(blocks[:, 4:])
    pool.take(3)
    assert not pool._index.holds(blocks[1, 3:4])
    hit = pool.match(longer(tokens))
    assert hit.blocks.shape == (2, 3)
    assert hit.blocks[1].tolist() == [-1, *blocks[1, 1:3].tolist()]


def test_without_a_block_of_a_full_group_nothing_behind_it_is_found() -> None:
    pool, tokens = BlockPool(10, block_size=SIZE, windows=(None, 6)), np.arange(20, dtype=np.int32)
    blocks = blocks_of(pool, tokens)
    pool.release(blocks[0, 1:2])
    pool.release(blocks[1])
    pool.take(1)
    # What went with the node can be taken at once, and was counted all along.
    assert pool.num_free == 5
    assert pool.take(5).size == 5


def test_where_all_groups_have_windows_what_lies_behind_them_may_all_be_gone() -> None:
    pool, tokens = BlockPool(10, block_size=SIZE, windows=(6,)), np.arange(40, dtype=np.int32)
    blocks = blocks_of(pool, tokens)
    for i in range(8):
        pool.release(blocks[:, i])
    pool.take(8)
    hit = pool.match(longer(tokens))
    assert hit.blocks[0].tolist() == [-1] * 8 + blocks[0, 8:].tolist()
    assert len(pool._index) == 10
    pool.release(blocks[:, 8:])
    pool.take(2)
    assert len(pool._index) == 0, "nodes that nobody needs stayed"


def test_blocks_fill_what_is_missing_of_others() -> None:
    pool, tokens = BlockPool(6, block_size=SIZE, windows=(None, 4)), np.arange(8, dtype=np.int32)
    first = pool.take_columns(2)
    first[1, 0] = -1  # given back before it was published
    pool.publish(first, "", tokens)
    assert len(pool.match(longer(tokens[:4]))) == 0
    second = pool.take_columns(1)
    pool.publish(second, "", tokens[:4])
    hit = pool.match(longer(tokens[:4]))
    assert hit.blocks.tolist() == [[first[0, 0]], [second[1, 0]]]
    assert len(pool.match(longer(tokens))) == 2


def test_a_block_that_took_the_place_of_an_evicted_one_is_found() -> None:
    pool, tokens = BlockPool(5, block_size=SIZE, windows=(None, 4)), np.arange(8, dtype=np.int32)
    blocks = pool.take_columns(2)
    pool.publish(blocks, "", tokens)
    assert pool.match(longer(tokens)).blocks[1].tolist() == [-1, blocks[1, 1]]
    pool.release(blocks[1])  # both of the window, of which the last is the first to go
    other = int(pool.take(2)[1])  # the empty one: the first is that one
    pool.publish(np.array([blocks[0], [-1, other]], np.int32), "", tokens)
    assert pool.match(longer(tokens)).blocks[1].tolist() == [-1, other]


@pytest.mark.parametrize("windows", [(None, 5), (None, None, 3, 9), (6,), (4, 4, 11)])
def test_hits_are_as_long_as_what_is_there_allows(windows: Windows) -> None:
    """Random holes, against trying every length."""
    rng, tokens = random.Random(1), np.arange(12 * SIZE, dtype=np.int32)
    for _ in range(200):
        pool = BlockPool(12 * len(windows), block_size=SIZE, windows=windows)
        blocks = pool.take_columns(12)
        for group in range(pool.num_full, len(windows)):
            for i in range(12):
                blocks[group, i] = -1 if rng.random() < 0.15 else blocks[group, i]
        pool.publish(blocks, "", tokens)

        def is_hit(count: int, blocks: np.ndarray = blocks, pool: BlockPool = pool) -> bool:
            return all(
                (blocks[g.first : g.last, g.first_seen(count, SIZE) : count] >= 0).all()
                for g in pool.windowed
            )

        expected = next(count for count in range(12, -1, -1) if is_hit(count))
        found = pool.match(longer(tokens))
        assert len(found) == expected
        for g in pool.windowed:
            unseen = g.first_seen(expected, SIZE)
            assert (found.blocks[g.first : g.last, :unseen] == -1).all()
            assert (found.blocks[g.first : g.last, unseen:] >= 0).all()
