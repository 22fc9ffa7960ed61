"""BlockPool: nothing leaks, nothing is freed twice, counts equal holders."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from quire.cache.pool import BlockPool, OutOfBlocks

SIZE = 2


class PoolMachine(RuleBasedStateMachine):
    """Sequences that take, share, publish and release, beside a naive model of the same."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(12, block_size=SIZE)
        self.held: list[tuple[list[int], list[int]]] = []  # (tokens, blocks) per sequence

    def tokens(self, data: st.DataObject, count: int) -> list[int]:
        return data.draw(st.lists(st.integers(0, 1), min_size=count, max_size=count))

    @rule(data=st.data(), blocks=st.integers(1, 4))
    def begin(self, data: st.DataObject, blocks: int) -> None:
        """A new sequence: what is cached is shared, the rest taken and published."""
        tokens = self.tokens(data, blocks * SIZE)
        ids = np.array([*tokens, 9], np.int32)
        found = self.pool.match(ids)
        need = blocks - len(found)
        if need + self.pool.num_idle_in(found) > self.pool.num_free:
            return
        self.pool.share(found.blocks)
        taken = self.pool.take(need)
        past = found.past
        for i, block in enumerate(taken.tolist(), start=len(found)):
            past = self.pool.publish(np.array([[block]]), past, ids[i * SIZE : (i + 1) * SIZE])
        self.held.append((tokens, [*found.blocks[0].tolist(), *taken.tolist()]))

    @rule(count=st.integers(0, 5))
    def take_private(self, count: int) -> None:
        if count > self.pool.num_free:
            with pytest.raises(OutOfBlocks):
                self.pool.take(count)
            return
        taken = self.pool.take(count).tolist()
        self.held.append(([], taken))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        tokens, blocks = data.draw(st.sampled_from(self.held))
        self.pool.share(np.array(blocks, np.int32))
        self.held.append((tokens, list(blocks)))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.held) - 1))
        _, blocks = self.held.pop(index)
        self.pool.release(np.array(blocks, np.int32))

    @invariant()
    def counts_equal_holders(self) -> None:
        counts = np.zeros(12, np.int32)
        for _, blocks in self.held:
            for block in blocks:
                counts[block] += 1
        assert (counts == self.pool.holders).all()
        assert self.pool.num_free == int((counts == 0).sum())

    @invariant()
    def cached_blocks_hold_what_was_asked_for(self) -> None:
        """Two sequences that share a block agree on everything up to its end."""
        where: dict[int, list[int]] = {}
        for tokens, blocks in self.held:
            for i, block in enumerate(blocks):
                if tokens:
                    past = tokens[: (i + 1) * SIZE]
                    assert where.setdefault(block, past) == past

    def teardown(self) -> None:
        for _, blocks in self.held:
            self.pool.release(np.array(blocks, np.int32))
        assert self.pool.num_free == 12
        taken = self.pool.take(12)
        assert sorted(taken.tolist()) == list(range(12)), "an id was lost or handed out twice"


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)


def published(pool: BlockPool, tokens: list[int], salt: str = "") -> np.ndarray:
    """Blocks that hold `tokens`, published and then released."""
    ids = np.array(tokens, np.int32)
    blocks = pool.take(len(tokens) // pool.block_size)
    past: int | str = salt
    for i, block in enumerate(blocks.tolist()):
        past = pool.publish(
            np.array([[block]]), past, ids[i * pool.block_size : (i + 1) * pool.block_size]
        )
    pool.release(blocks)
    return blocks


def test_a_match_never_covers_the_last_token() -> None:
    pool = BlockPool(8, block_size=4)
    blocks = published(pool, [7, 7, 7, 7, 8, 8, 8, 8])
    match = pool.match(np.array([7, 7, 7, 7, 8, 8, 8, 8], np.int32))
    assert match.blocks[0].tolist() == blocks[:1].tolist()
    longer = pool.match(np.array([7, 7, 7, 7, 8, 8, 8, 8, 9], np.int32))
    assert longer.blocks[0].tolist() == blocks.tolist()


def test_equal_tokens_after_another_past_do_not_match() -> None:
    pool = BlockPool(8, block_size=2)
    published(pool, [1, 1, 5, 5])
    assert len(pool.match(np.array([2, 2, 5, 5, 0], np.int32))) == 0
    assert len(pool.match(np.array([5, 5, 0], np.int32))) == 0


def test_another_salt_does_not_match() -> None:
    pool = BlockPool(8, block_size=2)
    published(pool, [1, 1], salt="a")
    assert len(pool.match(np.array([1, 1, 1], np.int32), salt="b")) == 0
    assert len(pool.match(np.array([1, 1, 1], np.int32), salt="a")) == 1


def test_a_state_is_found_from_the_next_plan_on() -> None:
    """A device may compute the row that would begin with it beside the row that makes it; keys and
    values are there at once."""
    ids = np.array([1, 2, 3, 4, 5], np.int32)
    for windows, at_once in (((None, 2), 0), ((None, 3), 2)):
        pool = BlockPool(12, block_size=SIZE, windows=windows)
        pool.begin_plan()
        pool.publish(pool.take_columns(2), "", ids[:4])
        assert len(pool.match(ids)) == at_once
        pool.begin_plan()
        assert len(pool.match(ids)) == 2


def test_the_longest_unused_content_is_evicted_first_from_its_end() -> None:
    pool = BlockPool(4, block_size=1)
    published(pool, [1, 2])
    published(pool, [3, 4])
    pool.match(np.array([1, 2, 0], np.int32))  # looking alone keeps nothing alive
    pool.take(1)
    assert len(pool.match(np.array([1, 2, 0], np.int32))) == 1
    assert len(pool.match(np.array([3, 4, 0], np.int32))) == 2


def test_what_is_shared_again_is_not_evicted() -> None:
    pool = BlockPool(4, block_size=1)
    old, new = published(pool, [1, 2]), published(pool, [3, 4])
    pool.share(old)
    pool.take(2)
    assert pool.num_free == 0
    assert pool.match(np.array([1, 2, 0], np.int32)).blocks[0].tolist() == old.tolist()
    assert len(pool.match(np.array([3, 4, 0], np.int32))) == 0
    assert set(new.tolist()).isdisjoint(old.tolist())


def test_content_behind_an_evicted_block_is_never_found_under_a_new_one() -> None:
    pool = BlockPool(3, block_size=1)
    first = published(pool, [1, 2])
    pool.share(first[1:])  # the second block stays, the first may go
    taken = pool.take(2)
    assert first[0] in taken
    assert len(pool.match(np.array([1, 2, 0], np.int32))) == 0
    pool.publish(first[None, :1], "", np.array([9], np.int32))
    assert pool.match(np.array([9, 2, 0], np.int32)).blocks[0].tolist() == [first[0]]


def test_an_equal_block_stays_private_and_its_children_are_found_behind_the_first() -> None:
    pool = BlockPool(6, block_size=1)
    first = pool.take(1)
    pool.publish(first[None, :1], "", np.array([1], np.int32))
    twin, child = pool.take(1), pool.take(1)
    past = pool.publish(twin[None, :1], "", np.array([1], np.int32))
    pool.publish(child[None, :1], past, np.array([2], np.int32))
    match = pool.match(np.array([1, 2, 0], np.int32))
    assert match.blocks[0].tolist() == [first[0], child[0]]


def test_forgetting_the_cache_needs_every_block_free() -> None:
    pool = BlockPool(4, block_size=1)
    published(pool, [1, 2])
    held = pool.take(1)
    assert not pool.forget_cache()
    pool.release(held)
    assert pool.forget_cache()
    assert len(pool.match(np.array([1, 2, 0], np.int32))) == 0
    assert pool.num_free == 4


def test_without_caching_nothing_is_found() -> None:
    pool = BlockPool(4, block_size=1, caching=False)
    published(pool, [1, 2])
    assert len(pool.match(np.array([1, 2, 0], np.int32))) == 0


def _with_a_prefix_in_common(rows: int) -> tuple[BlockPool, list[np.ndarray]]:
    """A pool, and the tables of rows that share two blocks and have two of their own, of which
    one is published."""
    pool, tables = BlockPool(40, block_size=SIZE), []
    for row in range(rows):
        tokens = np.array([1, 2, 3, 4, 10 + row, 5, 9], np.int32)
        found = pool.match(tokens)
        pool.share(found.blocks)
        own = pool.take_columns(4 - len(found))
        first = len(found) * SIZE
        pool.publish(own[:, :-1], found.past, tokens[first:6])
        tables.append(np.concatenate([found.blocks, own], axis=1))
    return pool, tables


def test_rows_that_end_together_leave_what_they_would_one_by_one() -> None:
    """The same is evicted, in the same order."""
    (pool, tables), (other, same) = (_with_a_prefix_in_common(5) for _ in range(2))
    ending = [2, 0, 4]
    pool.release_each(np.stack([tables[row] for row in ending], axis=1))
    for row in ending:
        other.release(same[row])
    assert (pool.holders == other.holders).all()
    pool.release_each(np.stack([tables[row] for row in (3, 1)], axis=1))
    for row in (3, 1):
        other.release(same[row])
    assert not pool.num_used
    assert pool.take(40).tolist() == other.take(40).tolist()


def test_a_prefix_that_many_share_has_as_many_holders() -> None:
    pool, tables = _with_a_prefix_in_common(5)
    assert pool.holders[tables[0]].tolist() == [[5, 5, 1, 1]]
    for table in tables:
        pool.release(table)
    found = pool.match(np.array([1, 2, 3, 4, 9], np.int32))
    assert len(found) == 2 and pool.num_idle_in(found) == 2
    pool.share(found.blocks)
    assert pool.num_idle_in(found) == 0
    pool.release(found.blocks)
    assert pool.num_idle_in(found) == 2
    pool.share(found.blocks)
    assert pool.take(38).size == 38  # all but the two that are held
    assert pool.holders[found.blocks].tolist() == [[1, 1]]
