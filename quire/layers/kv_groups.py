"""KVGroup: layers whose keys and values lie in the same blocks. Knows nothing of torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers with the same window. Their KV has blocks of its own, under a block table of its own,
    and blocks behind `window` are given back.

    Layers that keep a state (`is_state`) have no KV. Each of their blocks holds the state after the
    last token that was written in it. A token reads the block of the token before it, which is the
    same as a window of STATE_WINDOW tokens, so states need no rules of their own: a fork copies a
    row's last block, and a full block is a snapshot from which other rows can go on."""

    layers: tuple[int, ...]
    window: int | None = None
    is_state: bool = False


# Cost of one more block table (sending its entries to the device, planning its attention), as a
# share of the KV memory that larger groups would waste.
TABLE_COST = 0.02
STATE_WINDOW = 2  # a token, and the one before it


def kv_groups(
    windows: Sequence[int | None], longest: int, states: Sequence[bool] = ()
) -> tuple[KVGroup, ...]:
    """The groups for layers with these windows (None: the layer sees everything).

    All groups have nearly as many layers: a block has room for the layers of the largest group, so
    that any group can use any block. `states`: which layers keep a state; empty if none does.
    No sequence is longer than `longest`, so a window of that size is no window. Groups without a
    window come first. Six layers with windows (8, 8, None, 8, 8, None):
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
