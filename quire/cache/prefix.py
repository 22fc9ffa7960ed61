"""Finds the published blocks that hold given tokens after given earlier tokens.

A node stands for `block_size` published tokens, found by its key: (serial of the node before it,
its own token bytes). Serials are given once and never again, so a key names one exact past, and
the dictionary compares the tokens themselves: a colliding hash cannot hand out a wrong block.

A node has one block in each group of layers, or none (-1) where that was evicted or given back. A
hit needs all blocks from the beginning of groups that see everything, but of groups with a window
only those that the token after the hit sees. So a node is removed when it loses a block of a group
that sees everything: nodes after it can no longer be reached, and are evicted in turn. Where every
group has a window, a node is removed when it has neither a block nor a node after it.

block_size 4, one group, published [7 7 7 7] (serial 1) and behind it [8 8 8 8] (serial 2):
    match(b"7777 8888 9...", root="") -> the nodes with blocks [b0] and [b1]
The same with a window of 4 in a second group, whose first block is gone: blocks [b0 -] and [b1 b2],
and both are a hit, since the token at position 8 sees no further back than position 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from quire.cache.groups import ONE_GROUP, WindowGroups, Windows, window_groups
from quire.request import Ints

# The serial of the last published node; before the first node, the cache salt of the prompt.
Past = int | str

NO_BLOCK = -1


@dataclass(slots=True, eq=False)
class Node:
    """Published tokens, and the block of each group that holds their KV."""

    key: tuple[Past, bytes]
    serial: int
    blocks: list[int]
    num_children: int = 0

    @property
    def is_bare(self) -> bool:
        """It has no block and no node after it."""
        return not self.num_children and max(self.blocks) < 0


class PrefixIndex:
    """Published blocks by what they hold; their holders are not known here."""

    def __init__(self, windows: Windows = ONE_GROUP) -> None:
        self._num_groups, self._num_full = len(windows), windows.count(None)
        # (number, kind) of each group that has a window.
        self._windowed = [(g, kind) for kind in window_groups(windows) for g in _numbers(kind)]
        self._node_of: dict[tuple[Past, bytes], Node] = {}
        self._by_serial: dict[Past, Node] = {}
        self._by_block: dict[int, Node] = {}
        self._last_serial = 0
        # The last match: its root, its token bytes and its nodes. Prompts with a long common
        # beginning come one after another, so the next search begins with it.
        self._last_match: tuple[str, bytes, list[Node]] = ("", b"", [])
        # The last result of `table`, with its last node, which determines all nodes before it.
        self._last_table: tuple[Node, Ints] | None = None

    def __len__(self) -> int:
        return len(self._node_of)

    def __contains__(self, block: int) -> bool:
        return block in self._by_block

    def chain(self, tokens: bytes, root: str, *, block_bytes: int, most: int) -> list[Node]:
        """The nodes that begin `tokens`, at most `most`, whatever blocks are left of them."""
        found: list[Node] = []
        past: Past = root
        last_root, beginning, nodes = self._last_match
        if nodes and root == last_root and len(nodes) <= most and tokens.startswith(beginning):
            found, past = nodes.copy(), nodes[-1].serial
        for i in range(len(found), most):
            node = self._node_of.get((past, tokens[i * block_bytes : (i + 1) * block_bytes]))
            if node is None:
                break
            found.append(node)
            past = node.serial
        self._last_match = root, tokens[: len(found) * block_bytes], found.copy()
        return found

    def longest_hit(self, nodes: Sequence[Node], block_size: int) -> int:
        """How many of these nodes, from the first on, are a hit: each group with a window has all
        blocks that the token after them sees."""
        count, before = len(nodes), -1
        while count != before:
            before = count
            for group, kind in self._windowed:
                seen = range(count - 1, kind.first_seen(count, block_size) - 1, -1)
                # Cut off a missing block and all after it; then every group is checked again.
                count = next((i for i in seen if nodes[i].blocks[group] < 0), count)
        return count

    def table(self, nodes: Sequence[Node]) -> Ints:
        """The blocks of nodes that follow each other from the first on, [groups, nodes], -1 where
        a group has none. Read-only."""
        if not nodes:
            return np.empty((self._num_groups, 0), np.int32)
        if self._last_table is None or self._last_table[0] is not nodes[-1]:
            blocks = np.array([node.blocks for node in nodes], np.int32).T
            blocks.flags.writeable = False
            self._last_table = nodes[-1], blocks
        return self._last_table[1]

    def publish(self, blocks: Sequence[Sequence[int]], past: Past, tokens: bytes) -> Past:
        """Make blocks findable that follow each other after `past` and hold equal shares of
        `tokens`: blocks[g] are those of group g, -1 where it has none. Returns the serial of the
        node of the last one's content.

        Where a node has these tokens after this past already, it takes only the blocks that it
        lacks; the others of ours stay private, and our next blocks are published after that node.
        """
        size = len(tokens) // max(len(blocks[0]), 1)
        parent, made = self._by_serial.get(past), None
        for i, mine in enumerate(zip(*blocks, strict=True)):
            key = (past, tokens[i * size : (i + 1) * size])
            node = self._node_of.get(key)
            if node is None:
                made = node = self._make(key, mine, parent)
            elif NO_BLOCK in node.blocks:
                self._fill(node, mine)
            parent, past = node, node.serial
        if made is not None and made.is_bare:  # it has no block that could be found
            self._drop(made)
        return past

    def serials_behind(self, past: Past, last: Past) -> set[Past]:
        """The serials from the node after `past` to the node `last`, which follows it."""
        found: set[Past] = set()
        while last != past and (node := self._by_serial.get(last)) is not None:
            found.add(last)
            last = node.key[0]
        return found

    def _make(self, key: tuple[Past, bytes], blocks: Sequence[int], parent: Node | None) -> Node:
        self._last_serial += 1
        node = Node(key, self._last_serial, list(blocks))
        self._node_of[key] = self._by_serial[node.serial] = node
        for block in blocks:
            if block >= 0:
                self._by_block[block] = node
        if parent is not None:
            parent.num_children += 1
        return node

    def _fill(self, node: Node, blocks: Sequence[int]) -> None:
        """Give a node those of these blocks that it lacks."""
        for group, block in enumerate(blocks):
            if block >= 0 and node.blocks[group] < 0:
                node.blocks[group] = block
                self._by_block[block] = node

    def forget(self, block: int) -> list[Node]:
        """The block will be written over. Returns the nodes that are removed for it; their other
        blocks can no longer be found."""
        node = self._by_block.pop(block)
        group, self._last_table = node.blocks.index(block), None
        node.blocks[group] = NO_BLOCK
        return self._drop(node) if group < self._num_full or node.is_bare else []

    def forget_token(self, token_id: int) -> list[Node]:
        """Remove all nodes with this token among theirs. Returns the nodes that were removed."""
        self._last_table = None
        holding = [
            n for n in self._node_of.values() if token_id in np.frombuffer(n.key[1], np.int32)
        ]
        return [
            gone for node in holding if node.serial in self._by_serial for gone in self._drop(node)
        ]

    def _drop(self, node: Node) -> list[Node]:
        """Remove a node, then each parent that has no block and no other node after it."""
        self._last_match = ("", b"", [])
        dropped = [node]
        while True:
            gone = dropped[-1]
            del self._node_of[gone.key], self._by_serial[gone.serial]
            for block in gone.blocks:
                self._by_block.pop(block, None)
            parent = self._by_serial.get(gone.key[0])
            if parent is None:
                return dropped
            parent.num_children -= 1
            if not parent.is_bare:
                return dropped
            dropped.append(parent)


def _numbers(kind: WindowGroups) -> range:
    return range(kind.first, kind.last)
