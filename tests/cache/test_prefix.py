"""PrefixIndex: published blocks that are kept as runs are found, lost and filled as if each node
were an entry of a dictionary."""

from __future__ import annotations

import random

import numpy as np
import pytest

from quire.cache.groups import Windows
from quire.cache.prefix import Past, PrefixIndex

SIZE = 2  # tokens of a node
BYTES = 4 * SIZE
NUM_BLOCKS = 48


class Plain:
    """The same as PrefixIndex: a dictionary from (past, tokens of a node) to its serial."""

    def __init__(self, num_full: int) -> None:
        self.num_full, self.last = num_full, 0
        self.serial_of: dict[tuple[Past, bytes], int] = {}
        self.keys: dict[int, tuple[Past, bytes]] = {}
        self.blocks: dict[int, list[int]] = {}

    def find(self, tokens: bytes, root: str, most: int) -> list[int]:
        found: list[int] = []
        past: Past = root
        for i in range(most):
            key = past, tokens[i * BYTES : (i + 1) * BYTES]
            if key not in self.serial_of:
                break
            past = self.serial_of[key]
            found.append(past)
        return found

    def publish(self, blocks: list[list[int]], past: Past, tokens: bytes) -> Past:
        for i, mine in enumerate(blocks):
            key = past, tokens[i * BYTES : (i + 1) * BYTES]
            if key in self.serial_of:
                theirs = self.blocks[self.serial_of[key]]
                theirs[:] = [b if b >= 0 else a for a, b in zip(mine, theirs, strict=True)]
            else:
                self.last += 1
                self.serial_of[key], self.keys[self.last] = self.last, key
                self.blocks[self.last] = [*mine]
            past = self.serial_of[key]
        if isinstance(past, int) and self.is_bare(past):
            self.drop(past)
        return past

    def is_bare(self, serial: int) -> bool:
        """Nothing needs it."""
        has_next = any(past == serial for past, _ in self.serial_of)
        return serial in self.blocks and not has_next and max(self.blocks[serial]) < 0

    def drop(self, serial: int) -> dict[int, list[int]]:
        key = self.keys.pop(serial)
        del self.serial_of[key]
        gone = {serial: [block for block in self.blocks.pop(serial) if block >= 0]}
        if isinstance(key[0], int) and self.is_bare(key[0]):
            gone |= self.drop(key[0])
        return gone

    def forget(self, block: int) -> dict[int, list[int]]:
        [serial] = [serial for serial, blocks in self.blocks.items() if block in blocks]
        group = self.blocks[serial].index(block)
        self.blocks[serial][group] = -1
        return self.drop(serial) if group < self.num_full or self.is_bare(serial) else {}

    def forget_token(self, token: int) -> dict[int, list[int]]:
        gone: dict[int, list[int]] = {}
        for serial, (_, tokens) in [*self.keys.items()]:
            if token in np.frombuffer(tokens, np.int32) and serial in self.keys:
                gone |= self.drop(serial)
        return gone


def packed(*tokens: int) -> bytes:
    return np.array(tokens, np.int32).tobytes()


def column(first: int, count: int) -> np.ndarray:
    """The blocks first .. of one group."""
    return np.arange(first, first + count, dtype=np.int32)[None]


def found(index: PrefixIndex, tokens: bytes, most: int = 99) -> tuple[list[int], list[int]]:
    """Serials, and blocks of the first group."""
    some = index.find(tokens, "", block_bytes=BYTES, most=min(most, len(tokens) // BYTES))
    return some.serials.tolist(), some.blocks[0].tolist()


@pytest.mark.parametrize("windows", [(None,), (None, 6), (6,), (4, 9), (None, None, 3)])
def test_it_finds_and_loses_what_a_plain_dictionary_does(windows: Windows) -> None:
    for seed in range(8):
        rng = random.Random(seed)
        index, plain = PrefixIndex(NUM_BLOCKS, windows), Plain(windows.count(None))
        pasts: list[Past] = ["", "salt"]
        for _ in range(120):
            tokens = packed(*rng.choices((0, 0, 0, 1), k=SIZE * rng.randint(0, 9)))
            count, root = len(tokens) // BYTES, rng.choice(("", "", "salt"))
            used = {b for blocks in plain.blocks.values() for b in blocks if b >= 0}
            unused = [block for block in range(NUM_BLOCKS) if block not in used]
            match rng.randrange(8):
                case 0 | 1 | 2 if len(unused) >= count * len(windows):
                    taken = rng.sample(unused, count * len(windows))
                    blocks = np.array(taken, np.int32).reshape(len(windows), count)
                    holes = np.array(rng.choices((True, False, False), k=blocks.size), bool)
                    holes = holes.reshape(blocks.shape)
                    holes[: windows.count(None)] = False
                    blocks[holes] = -1
                    past = root if rng.random() < 0.6 else rng.choice(pasts[-12:])
                    last = index.publish(blocks, past, tokens)
                    assert last == plain.publish(blocks.T.tolist(), past, tokens)
                    pasts.append(last)
                case 3 | 4 if used:
                    block = rng.choice(sorted(used))
                    assert dict(index.forget(block)) == plain.forget(block)
                case 5 if rng.random() < 0.2:
                    assert dict(index.forget_token(1)) == plain.forget_token(1)
            most = rng.randint(0, count)
            for limit in (most, count):  # the second goes on from what the first found
                hit = index.find(tokens, root, block_bytes=BYTES, most=limit)
                serials = plain.find(tokens, root, limit)
                assert hit.serials.tolist() == serials
                assert hit.blocks.T.tolist() == [plain.blocks[serial] for serial in serials]
            used = {b for blocks in plain.blocks.values() for b in blocks if b >= 0}
            assert set(np.flatnonzero(index.holds(np.arange(NUM_BLOCKS)))) == used
            assert len(index) == len(plain.blocks)


def test_what_was_evicted_inside_a_run_is_published_again_and_then_found_with_what_is_new() -> None:
    index, tokens = PrefixIndex(20), packed(*range(6 * SIZE))
    index.publish(column(0, 6), "", tokens)
    assert index.forget(2) == [(3, [])]
    assert found(index, tokens) == ([1, 2], [0, 1])
    assert index.holds(column(0, 6)[0]).tolist() == [True, True, False, True, True, True]
    # All from the beginning: the first two are there, and what lies behind the gap is not reached.
    assert index.publish(column(10, 5), "", tokens[: 5 * BYTES]) == 9
    assert found(index, tokens) == ([1, 2, 7, 8, 9], [0, 1, 12, 13, 14])
    assert found(index, tokens, most=3) == ([1, 2, 7], [0, 1, 12])
    for block in (3, 4, 5):
        index.forget(block)
    assert found(index, tokens)[0] == [1, 2, 7, 8, 9]


def test_a_forgotten_token_takes_its_nodes_out_of_a_run() -> None:
    index, tokens = PrefixIndex(20), packed(0, 1, 2, 3, -7, -7, -7, 5, 6, 7)
    index.publish(column(0, 5), "", tokens)
    assert dict(index.forget_token(-7)) == {3: [2], 4: [3]}
    assert found(index, tokens) == ([1, 2], [0, 1])
    assert index.publish(column(12, 3), 2, tokens[2 * BYTES :]) == 8
    assert found(index, tokens) == ([1, 2, 6, 7, 8], [0, 1, 12, 13, 14])


def test_blocks_inside_a_run_are_filled_after_their_windows_block_went() -> None:
    index, tokens = PrefixIndex(20, (None, 4)), packed(*range(4 * SIZE))
    index.publish(np.concatenate([column(0, 4), column(4, 4)]), "", tokens)
    assert index.forget(5) == index.forget(6) == []
    index.publish(np.array([[8, 9, 10], [11, 12, 13]], np.int32), "", tokens[: 3 * BYTES])
    some = index.find(tokens, "", block_bytes=BYTES, most=4)
    assert some.serials.tolist() == [1, 2, 3, 4]
    assert some.blocks.tolist() == [[0, 1, 2, 3], [4, 12, 13, 7]]
    assert index.holds(np.array([8, 11, 12, 13])).tolist() == [False, False, True, True]


def test_a_node_that_goes_leaves_a_block_that_is_another_nodes_now() -> None:
    """Rows that share a block publish it twice where a node before it went meanwhile."""
    index = PrefixIndex(8)
    index.publish(column(0, 1), "", packed(0, 0))
    behind = packed(0, 0, 1, 1)
    assert index.publish(column(2, 2), "", behind) == 2  # block 2 is private
    index.forget(0)
    assert index.publish(column(2, 2), "", behind) == 4  # block 3 again
    index.forget(3)
    index.publish(column(3, 1), "", packed(5, 5))  # written anew
    assert dict(index.forget_token(1)) == {2: []}
    assert index.holds(np.array([3])) and found(index, packed(5, 5)) == ([5], [3])


@pytest.mark.parametrize("order", ["from the end", "in no order", "every second"])
def test_a_run_in_pieces_keeps_no_more_bytes_than_its_nodes(order: str) -> None:
    count = 1000
    index, tokens = PrefixIndex(count), packed(*range(count * SIZE))
    index.publish(column(0, count), "", tokens)
    blocks = {
        "from the end": range(count)[::-1],
        "in no order": random.Random(1).sample(range(count), count),
        "every second": [*range(1, count, 2)[::-1], *range(0, count, 2)],
    }[order]
    for gone, block in enumerate(blocks, start=1):
        index.forget(block)
        if gone % 100 == 0:
            runs = {id(run): run for run in index._by_serial.values()}.values()
            assert sum(len(run.tokens) for run in runs) <= 2 * BYTES * (count - gone)
    assert not len(index) and not index._by_key and not index._num_runs_after
