"""Finds the published blocks that hold given tokens after given earlier tokens.

A node stands for `block_size` published tokens after one exact past. Nodes have serials, which are
given once and never again. Nodes that were published together form a run, with serials in a row,
and are kept as one object: a prompt of thousands of tokens is one. The first node of a run is found
by its key: (serial of the node before it, its own token bytes). A node further on is found by the
node before it, and what follows that otherwise is a run of its own. Tokens themselves are compared,
so a colliding hash cannot hand out a wrong block.

A node has one block in each group of layers, or none (-1) where that was evicted or given back. A
hit needs all blocks from the beginning of groups that see everything, but of groups with a window
only those that the token after the hit sees. So a node is removed when it loses a block of a group
that sees everything: nodes after it can no longer be reached, and are evicted in turn. Where every
group has a window, a node is removed when it has neither a block nor a node after it.

block_size 4, one group, published [7 7 7 7 8 8 8 8] (serials 1 and 2) and, after serial 1, [9 9 9
9] (serial 3):
    find(b"7777 9999 5...", root="") -> serials [1 3] with blocks [b0 b2]
The same with a window of 4 in a second group, whose first block is gone: blocks [b0 -] and [b1 b3],
and both are a hit, since the token at position 8 sees no further back than position 5.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
import numpy.typing as npt

from quire.cache.groups import ONE_GROUP, WindowGroups, Windows, window_groups
from quire.request import Ints

# The serial of the last published node; before the first node, the cache salt of the prompt.
Past = int | str

NO_BLOCK = -1


class _Run(msgspec.Struct, eq=False):
    """Nodes first .. first + count, each of which follows the one before."""

    past: Past  # of the first node
    first: int
    tokens: bytes  # of its nodes, and then perhaps of some that are gone
    size: int  # bytes of the tokens of a node
    blocks: Ints  # [groups, count]

    @property
    def count(self) -> int:
        return int(self.blocks.shape[1])

    @property
    def key(self) -> tuple[Past, bytes]:
        return self.past, self.tokens[: self.size]

    def shorten(self, count: int) -> None:
        """Keep the first nodes alone. The bytes of the others go once they are more than half:
        evictions shorten a run one by one."""
        self.blocks = self.blocks[:, :count]
        if len(self.tokens) > 2 * count * self.size:
            self.tokens, self.blocks = self.tokens[: count * self.size], self.blocks.copy()

    def num_common(self, node: int, tokens: bytes, start: int, most: int) -> int:
        """How many nodes from number `node` on hold the tokens from byte `start` on, up to
        `most`."""
        size, most = self.size, min(most, self.count - node)
        if tokens.startswith(self.tokens[node * size : (node + most) * size], start):
            return most
        pieces = (self.tokens[i : i + size] for i in range(node * size, len(self.tokens), size))
        theirs = range(start, len(tokens), size)
        return next(
            i
            for i, (mine, at) in enumerate(zip(pieces, theirs, strict=False))
            if not tokens.startswith(mine, at)
        )


class Found(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Nodes that follow each other from the first on: their serials, and blocks [groups, nodes], -1
    where a group has none. Read-only."""

    serials: npt.NDArray[np.int64]
    blocks: Ints


class PrefixIndex:
    """Published blocks by what they hold; their holders are not known here."""

    def __init__(self, num_blocks: int, windows: Windows = ONE_GROUP) -> None:
        self._num_full = windows.count(None)
        # (number, kind) of each group that has a window.
        self._windowed = [(g, kind) for kind in window_groups(windows) for g in _numbers(kind)]
        self._by_key: dict[tuple[Past, bytes], _Run] = {}
        self._by_serial: dict[Past, _Run] = {}
        # Of each block's node; 0: none. The last entry is that of NO_BLOCK, and means nothing.
        self._serial_of = np.zeros(num_blocks + 1, np.int64)
        self._num_runs_after: dict[Past, int] = {}
        self._last_serial = 0
        self._nothing = Found(np.empty(0, np.int64), np.empty((len(windows), 0), np.int32))
        # What was found last, its root and its token bytes. Prompts with a long common beginning
        # come one after another, so the next search begins with it.
        self._last: tuple[str, bytes, Found] = ("", b"", self._nothing)

    def __len__(self) -> int:
        return len(self._by_serial)

    def holds(self, blocks: Ints) -> npt.NDArray[np.bool_]:
        """Which of these blocks can be found."""
        return self._serial_of[blocks] > 0

    def find(self, tokens: bytes, root: str, *, block_bytes: int, most: int) -> Found:
        """The nodes that begin `tokens`, at most `most`, whatever blocks are left of them. The same
        object if the same nodes are found again."""
        last_root, beginning, found = self._last
        at = len(found.serials)
        if at > most or root != last_root or not tokens.startswith(beginning):
            found, at = self._nothing, 0
        past: Past = found.serials.item(-1) if at else root
        spans = list(self._spans(tokens, past, block_bytes, at, most))
        if spans:
            serials = [np.arange(run.first + i, run.first + end) for run, i, end in spans]
            blocks = [run.blocks[:, i:end] for run, i, end in spans]
            found = Found(
                np.concatenate([found.serials, *serials]),
                np.concatenate([found.blocks, *blocks], axis=1),
            )
            found.blocks.flags.writeable = False  # searches after this one may be given it too
            self._last = root, tokens[: len(found.serials) * block_bytes], found
        return found

    def _spans(
        self, tokens: bytes, past: Past, size: int, at: int, most: int
    ) -> Iterator[tuple[_Run, int, int]]:
        """The nodes that hold blocks at .. most of the tokens, after `past`: (run, first node, the
        one after the last)."""
        while at < most:
            piece = tokens[at * size : (at + 1) * size]
            run, node = self._by_key.get((past, piece)), 0
            if run is None and isinstance(past, int) and past in self._by_serial:
                run = self._by_serial[past]
                node = past - run.first + 1
                if run.tokens[node * size : (node + 1) * size] != piece or node == run.count:
                    return
            if run is None:
                return
            count = run.num_common(node, tokens, at * size, most - at)
            yield run, node, node + count
            past, at = run.first + node + count - 1, at + count

    def longest_hit(self, blocks: Ints, block_size: int) -> int:
        """How many of the nodes with these blocks, from the first on, are a hit: each group with a
        window has all blocks that the token after them sees."""
        count, before = len(blocks[0]), -1
        while count != before:
            before = count
            for group, kind in self._windowed:
                first = kind.first_seen(count, block_size)
                missing = np.flatnonzero(blocks[group, first:count] < 0)
                if len(missing):
                    # Cut off a missing block and all after it; then every group is checked again.
                    count = first + int(missing[-1])
        return count

    def publish(self, blocks: Ints, past: Past, tokens: bytes) -> Past:
        """Make blocks [groups, count] findable that follow each other after `past` and hold equal
        shares of `tokens`; -1 where a group has none. Returns the serial of the node of the last
        one's content.

        Where a node has these tokens after this past already, it takes only the blocks that it
        lacks; the others of ours stay private, and our next blocks are published after that node.
        """
        most, at = blocks.shape[1], 0
        size = len(tokens) // max(most, 1)
        for run, node, end in self._spans(tokens, past, size, at, most):
            self._fill(run, node, blocks[:, at : at + end - node])
            past, at = run.first + end - 1, at + end - node
        if at == most:
            return past
        made = _Run(past, self._last_serial + 1, tokens[at * size :], size, blocks[:, at:].copy())
        self._last_serial += made.count
        self._enter(made)
        if self._is_bare(made, made.count - 1):  # it has no block that could be found
            self._drop(self._last_serial)
        return self._last_serial

    def serials_behind(self, past: Past, last: Past) -> set[Past]:
        """The serials from the node after `past` to the node `last`, which follows it."""
        found: set[Past] = set()
        while isinstance(last, int) and last != past and last in self._by_serial:
            run = self._by_serial[last]
            is_here = isinstance(past, int) and run.first <= past < last
            found.update(range(int(past) + 1 if is_here else run.first, last + 1))
            last = past if is_here else run.past
        return found

    def _enter(self, run: _Run) -> None:
        serials = np.arange(run.first, run.first + run.count)
        self._by_key[run.key] = run
        self._by_serial.update(dict.fromkeys(serials.tolist(), run))
        self._num_runs_after[run.past] = self._num_runs_after.get(run.past, 0) + 1
        self._serial_of[run.blocks.astype(np.intp)] = serials  # as other indices it takes 3 us more

    def _fill(self, run: _Run, node: int, ours: Ints) -> None:
        """Give nodes of a run, from `node` on, those of our blocks that they lack."""
        first, count = run.first + node, ours.shape[1]
        theirs = run.blocks[:, node : node + count]
        lacking = (theirs < 0) & (ours >= 0)
        if lacking.any():
            theirs[lacking] = ours[lacking]
            given = np.where(lacking, ours, NO_BLOCK)
            self._serial_of[given] = np.arange(first, first + count)
            self._forget_last()

    def _forget_last(self) -> None:
        self._last = "", b"", self._nothing

    def forget(self, block: int) -> list[tuple[int, list[int]]]:
        """The block will be written over. Returns the nodes that are removed for it, as serials and
        the other blocks, which can no longer be found."""
        run = self._by_serial[self._serial_of.item(block)]
        node = self._serial_of.item(block) - run.first
        group = run.blocks[:, node].tolist().index(block)
        run.blocks[group, node], self._serial_of[block] = NO_BLOCK, 0
        self._forget_last()
        is_gone = group < self._num_full or self._is_bare(run, node)
        return self._drop(run.first + node) if is_gone else []

    def forget_token(self, token_id: int) -> list[tuple[int, list[int]]]:
        """Remove all nodes with this token among theirs. Returns the nodes that were removed."""
        self._forget_last()
        holding = []
        for serial, run in self._by_serial.items():
            start = (serial - run.first) * run.size  # type: ignore[operator]
            if token_id in np.frombuffer(run.tokens, np.int32, run.size // 4, start):
                holding.append(serial)
        # From the end: of a run, only what lies between two of them is then moved by each cut.
        return [
            gone
            for serial in reversed(holding)
            if serial in self._by_serial
            for gone in self._drop(serial)
        ]

    def _is_bare(self, run: _Run, node: int) -> bool:
        """It has no block and no node after it. Never where a group sees everything."""
        if self._num_full or node < run.count - 1 or run.first + node in self._num_runs_after:
            return False
        return bool((run.blocks[:, node] < 0).all())

    def _drop(self, serial: Past) -> list[tuple[int, list[int]]]:
        """Remove a node, then each parent that has no block and no other node after it."""
        self._forget_last()
        dropped: list[tuple[int, list[int]]] = []
        while isinstance(serial, int) and (run := self._by_serial.get(serial)) is not None:
            node = serial - run.first
            if dropped and not self._is_bare(run, node):
                break
            dropped.append((serial, self._cut_out(run, node)))
            serial = serial - 1 if node else run.past
        return dropped

    def _cut_out(self, run: _Run, node: int) -> list[int]:
        """Take a node out of its run; what follows it becomes a run of its own. Returns the node's
        blocks."""
        # A block may have become that of another node since: rows that share blocks publish them
        # anew where a node on the way to this one was evicted meanwhile.
        serial, column = run.first + node, run.blocks[:, node].tolist()
        blocks = [b for b in column if b >= 0 and self._serial_of.item(b) == serial]
        self._serial_of[blocks] = 0
        del self._by_serial[serial]
        if node + 1 < run.count:
            rest = run.tokens[(node + 1) * run.size : run.count * run.size]
            blocks_after = run.blocks[:, node + 1 :].copy()
            self._enter(_Run(serial, serial + 1, rest, run.size, blocks_after))
        if node:
            run.shorten(node)
        else:
            del self._by_key[run.key]
            self._num_runs_after[run.past] -= 1
            if not self._num_runs_after[run.past]:
                del self._num_runs_after[run.past]
        return blocks


def _numbers(kind: WindowGroups) -> range:
    return range(kind.first, kind.last)
