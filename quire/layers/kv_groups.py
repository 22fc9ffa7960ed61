"""KVGroup: layers whose keys and values lie in the same blocks. Knows nothing of torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import lcm

import numpy as np
import numpy.typing as npt

from quire.request import Ints

Heads = tuple[int, int]  # KV heads, and the numbers of one
_Kind = tuple[bool, int, int, Heads | None]  # is_state, window (0: none), parts, heads


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers with the same window. Their KV has blocks of its own, under a block table of its own,
    and blocks behind `window` are given back.

    A block is a number of places. A place holds the KV of one layer, or of `parts` layers if theirs
    is smaller than that of others. `heads`: KV heads of these layers, where layers differ.
    `readers`: layers that read the KV of one of these and have none of their own, each with the
    index of that layer in `layers`.

    Layers that keep a state (`is_state`) have no KV. Each of their blocks holds the state after the
    last token that was written in it. A token reads the block of the token before it, which is the
    same as a window of STATE_WINDOW tokens, so states need no rules of their own: a fork copies a
    row's last block, and a full block is a snapshot from which other rows can go on."""

    layers: tuple[int, ...]
    window: int | None = None
    is_state: bool = False
    parts: int = 1
    heads: Heads | None = None
    readers: tuple[tuple[int, int], ...] = ()

    @property
    def members(self) -> tuple[tuple[int, int], ...]:
        """Every layer that uses this group's blocks, with an index in `layers`."""
        return (*((layer, index) for index, layer in enumerate(self.layers)), *self.readers)

    @property
    def num_places(self) -> int:
        return -(-len(self.layers) // self.parts)


# Cost of one more block table (sending its entries to the device, planning its attention), as a
# share of the KV memory that larger groups would waste.
TABLE_COST = 0.02
STATE_WINDOW = 2  # a token, and the one before it


def kv_groups(
    windows: Sequence[int | None],
    longest: int,
    states: Sequence[bool] = (),
    heads: Sequence[Heads] = (),
    sources: Sequence[int | None] = (),
) -> tuple[KVGroup, ...]:
    """The groups for layers with these windows (None: the layer sees everything).

    All groups have nearly as many places: a block has room for the layers of the largest group, so
    that any group can use any block. `states`: which layers keep a state; empty if none does.
    `heads`: of each layer; empty if all have the same. `sources`: of each layer the one whose KV it
    reads, None for its own; empty if all have their own.
    No sequence is longer than `longest`, so a window of that size is no window. Groups without a
    window come first. Six layers with windows (8, 8, None, 8, 8, None):
        KVGroup((2, 5)), KVGroup((0, 1), 8), KVGroup((3, 4), 8)
    """
    seen = [(0 if window is None or window >= longest else window, False) for window in windows]
    for layer, keeps_state in enumerate(states):
        if keeps_state:
            seen[layer] = (STATE_WINDOW, True)
    place = lcm(*(count * width for count, width in heads))  # ModelSpec.place_numbers
    kinds: dict[_Kind, list[int]] = {}
    for layer, (window, is_state) in enumerate(seen):
        if sources and sources[layer] is not None:
            continue
        own = heads[layer] if heads and not is_state else None
        parts = 1 if own is None else place // (own[0] * own[1])
        kinds.setdefault((is_state, window, parts, own), []).append(layer)

    def cost(size: int) -> float:
        counts = {kind: -(-len(layers) // (size * kind[2])) for kind, layers in kinds.items()}
        rooms = {kind: count * size * kind[2] for kind, count in counts.items()}
        waste = max(1 - len(layers) / rooms[kind] for kind, layers in kinds.items())
        return waste + TABLE_COST * sum(count * kind[2] for kind, count in counts.items())

    most = max(-(-len(layers) // kind[2]) for kind, layers in kinds.items())
    best = min(range(1, most + 1), key=cost)
    groups = (
        KVGroup(tuple(layers[first : first + best * parts]), window or None, is_state, parts, own)
        for (is_state, window, parts, own), layers in sorted(kinds.items(), key=_place_in_order)
        for first in range(0, len(layers), best * parts)
    )
    return tuple(replace(group, readers=_readers(group, sources)) for group in groups)


def _readers(group: KVGroup, sources: Sequence[int | None]) -> tuple[tuple[int, int], ...]:
    index = {layer: i for i, layer in enumerate(group.layers)}
    return tuple((i, index[source]) for i, source in enumerate(sources) if source in index)


def _place_in_order(kind: tuple[_Kind, list[int]]) -> tuple[bool, int, int]:
    (is_state, window, parts, _), _ = kind
    return is_state, window, parts


@dataclass(frozen=True, slots=True, eq=False)
class BlockTables:
    """The block tables of a device: one for each group of layers, or one for each of the `parts` of
    its places. Layers of part i see block b as block b * parts + i of their memory.

    Group 0 has places of two parts, group 1 whole ones: groups [0 0 1], parts [2 2 1], part
    [0 1 0]; the blocks [7 3] of the groups, one each, are [14 15 3] in the tables."""

    windows: tuple[int | None, ...]
    groups: npt.NDArray[np.int64]
    parts: npt.NDArray[np.int64]
    part: npt.NDArray[np.int64]

    @classmethod
    def of(cls, groups: Sequence[KVGroup]) -> BlockTables:
        each = [(i, group, part) for i, group in enumerate(groups) for part in range(group.parts)]
        numbers = np.array([(i, group.parts, part) for i, group, part in each], np.int64)
        return cls(tuple(group.window for _, group, _ in each), *numbers.T)

    def __len__(self) -> int:
        return len(self.windows)

    @property
    def num_full(self) -> int:
        """Tables of groups without a window, which come first."""
        return self.windows.count(None)

    def seen(self, blocks: Ints, *, full: bool = False) -> Ints:
        """Blocks [groups * n] -> [tables * n]; -1 stays -1. `full`: only groups without a
        window."""
        count = self.num_full if full else len(self)
        groups, parts, part = self.groups[:count], self.parts[:count, None], self.part[:count, None]
        if not count or len(groups) == groups[-1] + 1:  # all places are whole
            return blocks
        lines = blocks.reshape(int(groups[-1]) + 1, -1)[groups]
        return np.where(lines < 0, lines, lines * parts + part).astype(np.int32).ravel()

    def block_in(self, table: int, block: int) -> int:
        """A block as a table sees it."""
        return block if block < 0 else block * int(self.parts[table]) + int(self.part[table])

    def table_of(self, group: int, index: int) -> int:
        """The table of a group's layer number `index`."""
        first = int(np.searchsorted(self.groups, group))
        return first + index % int(self.parts[first])


ONE_TABLE = BlockTables.of([KVGroup((0,))])
