"""KVGroup: layers whose keys and values lie in the same blocks. Knows nothing of torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers that see equally far back. Their KV lies in blocks of their own, under a block table
    of their own, and what lies behind `window` is given back.

    Layers that keep a state have no KV (`is_state`). Each of their blocks holds the state behind
    the last token that was written in it: a token reads the block of the token before it, and that
    is a window of STATE_WINDOW. So what holds for blocks holds for states: the last block of a row
    is copied when the row is forked, and a whole one is a snapshot that others can go on from."""

    layers: tuple[int, ...]
    window: int | None = None
    is_state: bool = False


# What a table more costs, in entries to tell the device and in attention to plan, as a share of
# the KV memory that larger groups would waste.
TABLE_COST = 0.02
STATE_WINDOW = 2  # a token, and the one before it


def kv_groups(
    windows: Sequence[int | None], longest: int, states: Sequence[bool] = ()
) -> tuple[KVGroup, ...]:
    """Layers, each with its window (None = it sees everything), in groups of nearly one size: a
    block has room for the layers of the largest, so that any group can take any block. `states`:
    which of them keep a state instead; none given, none does.

    No sequence is longer than `longest`, so a window of that size is none. Groups that see
    everything come first. Six layers with windows (8, 8, None, 8, 8, None):
        KVGroup((2, 5)), KVGroup((0, 1), 8), KVGroup((3, 4), 8)
    """
    seen = [(0 if window is None or window >= longest else window, False) for window in windows]
    for layer, keeps_state in enumerate(states):
        if keeps_state:
            seen[layer] = (STATE_WINDOW, True)
    kinds = sorted(set(seen), key=lambda kind: (kind[1], kind[0]))
    layers = {kind: [i for i, one in enumerate(seen) if one == kind] for kind in kinds}

    def cost(size: int) -> float:
        rooms = {kind: -(-len(layers[kind]) // size) * size for kind in kinds}
        waste = max(1 - len(layers[kind]) / rooms[kind] for kind in kinds)
        return waste + TABLE_COST * sum(rooms.values()) / size

    best = min(range(1, max(map(len, layers.values())) + 1), key=cost)
    return tuple(
        KVGroup(tuple(layers[kind][first : first + best]), kind[0] or None, kind[1])
        for kind in kinds
        for first in range(0, len(layers[kind]), best)
    )
