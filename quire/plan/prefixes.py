"""Which prompts have a common beginning: a prefix tree over whole blocks, kept as a sorted list.

Sorted by their bytes, prompts with a common beginning are neighbours, and the number of tokens that
any two share is the smallest `common` between them. The list gives all else: equal prompts, groups
that share blocks, and what a prefix cache will hold when a prompt begins. It compares the tokens
themselves, so no hash can collide. It does not know requests, pools or times.

block_size 2, prompts 0 = [1 2 3 4 5], 1 = [9 9], 2 = [1 2 3 4 7 7]:
    ranked  0 2 1
    common  0 4 0   -> prompts 0 and 2 share two blocks
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from quire.request import Ints


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """Prompts (by index, ascending) that all begin with the same `num_blocks` blocks.

    `parent` is the place, in the same tuple of groups, of the wider group this one lies in.
    """

    members: tuple[int, ...]
    num_blocks: int
    parent: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class PrefixTree:
    """Prompts in an order where those with a common beginning are neighbours.

    `ranked` holds prompt indices; `common[k]` counts the tokens that ranked[k - 1] and
    ranked[k] begin with in common; `lengths` counts the tokens of every prompt, by index.
    """

    ranked: Ints
    common: Ints
    lengths: Ints
    block_size: int

    @staticmethod
    def of(prompts: Sequence[Ints], *, block_size: int, salts: Sequence[str] = ()) -> PrefixTree:
        """Sort the prompts; those with different `salts` have nothing in common."""
        keys = _sortable(prompts, salts)
        ranked = sorted(range(len(keys)), key=keys.__getitem__)
        common = np.zeros(len(ranked), np.int32)
        for place in range(1, len(ranked)):
            before, here = ranked[place - 1], ranked[place]
            if not salts or salts[before] == salts[here]:
                common[place] = _num_common(prompts[before], prompts[here])
        lengths = np.fromiter((len(p) for p in prompts), np.int32, len(prompts))
        return PrefixTree(np.array(ranked, np.int32), common, lengths, block_size)

    def keep(self, wanted: npt.NDArray[np.bool_]) -> PrefixTree:
        """The tree of those prompts alone whose index is `wanted`; indices stay the same."""
        places = np.flatnonzero(wanted[self.ranked])
        if not len(places):
            nothing = np.empty(0, np.int32)
            return PrefixTree(nothing, nothing, self.lengths, self.block_size)
        # Between two kept places the smallest number counts: after the first, up to the second.
        spans = np.minimum.reduceat(self.common[: places[-1] + 1], np.r_[0, places[:-1] + 1])
        spans[0] = 0
        return PrefixTree(self.ranked[places], spans, self.lengths, self.block_size)

    def first_equal(self) -> Ints:
        """For every prompt the lowest index that has the same tokens (and salt)."""
        first = np.arange(len(self.lengths), dtype=np.int32)
        length = self.lengths[self.ranked]
        same = np.zeros(len(self.ranked), np.bool_)
        same[1:] = (self.common[1:] == length[1:]) & (length[:-1] == length[1:]) & (length[1:] > 0)
        starts = np.flatnonzero(~same)
        if len(starts):
            # Equal keys were sorted stably, so the first of a run has the lowest index.
            run = np.cumsum(~same) - 1
            first[self.ranked] = self.ranked[starts[run]]
        return first

    def cached_tokens(
        self, order: Sequence[int] | Ints, *, no_read: frozenset[int] = frozenset()
    ) -> Ints:
        """Prompt tokens of each prompt that are cached when it begins, in this `order`.

        The first prompt that needs a block computes it, all later ones find it. Whole blocks only,
        and never the last token: the model needs one to compute a distribution from. Prompts
        in `no_read` compute everything, but others find what they computed.

        block_size 2, order [0, 2, 1] of the example above -> cached [0, 0, 4]
        """
        cached = np.zeros(len(self.lengths), np.int32)
        count = len(self.ranked)
        place_of = dict(zip(self.ranked.tolist(), range(count), strict=True))
        shared = [*(self.common // self.block_size).tolist(), 0]
        before, after = list(range(-1, count - 1)), list(range(1, count + 1))
        whole = (np.maximum(self.lengths - 1, 0) // self.block_size).tolist()
        # Backwards: at a prompt's turn, only the prompts that come before it are left in the chain.
        for prompt in reversed([int(i) for i in order]):
            place = place_of[prompt]
            left, right = shared[place], shared[after[place]]
            if prompt not in no_read:
                cached[prompt] = min(max(left, right), whole[prompt]) * self.block_size
            shared[after[place]] = min(left, right)
            if before[place] >= 0:
                after[before[place]] = after[place]
            if after[place] < count:
                before[after[place]] = before[place]
        return cached

    def groups(self) -> tuple[SharedPrefix, ...]:
        """Groups that share at least a block, at most two levels deep, the wider ones first.

        The outer level has all prompts that share any block (one chat template, say). The groups
        inside it are chosen so that together they share the most tokens (the subjects after it).
        """
        shared = (self.common // self.block_size).tolist()
        bounds = [k for k, blocks in enumerate(shared) if blocks == 0] + [len(shared)]
        outer: list[SharedPrefix] = []
        inner: list[SharedPrefix] = []
        for start, end in zip(bounds, bounds[1:], strict=False):
            if end - start < 2:
                continue
            base = min(shared[start + 1 : end])
            for low, high, blocks in _best_groups(shared, start, end, base):
                inner.append(SharedPrefix(self._members(low, high), blocks, len(outer)))
            outer.append(SharedPrefix(self._members(start, end), base))
        return (*outer, *inner)

    def _members(self, start: int, end: int) -> tuple[int, ...]:
        return tuple(np.sort(self.ranked[start:end]).tolist())


@dataclass(slots=True)
class _Branch:
    """An open span of neighbours that share `blocks`, and the best groups found inside it."""

    blocks: int
    start: int
    saved: int = 0
    chosen: list[tuple[int, int, int]] = field(default_factory=list)

    def close(self, end: int, base: int) -> None:
        """Make this branch one group if that saves at least as much as its parts do."""
        alone = (end - self.start - 1) * (self.blocks - base)
        if alone >= self.saved:
            self.saved, self.chosen = alone, [(self.start, end, self.blocks)]

    def take_over(self, child: _Branch) -> None:
        self.saved += child.saved
        if len(self.chosen) < len(child.chosen):
            self.chosen, child.chosen = child.chosen, self.chosen
        self.chosen.extend(child.chosen)


def _best_groups(shared: list[int], start: int, end: int, base: int) -> list[tuple[int, int, int]]:
    """Disjoint (start, end, blocks) in the span that save the most blocks beyond `base`.

    shared 0 2 5 5 2, base 2 -> [(1, 4, 5)]: places 1 to 3 agree on five blocks.
    """
    found: list[tuple[int, int, int]] = []
    open_branches: list[_Branch] = []
    for place in range(start + 1, end + 1):
        blocks = shared[place] if place < end else base
        begin = place - 1
        child: _Branch | None = None
        while open_branches and open_branches[-1].blocks > blocks:
            closing = open_branches.pop()
            if child is not None:
                closing.take_over(child)
            closing.close(place, base)
            child, begin = closing, closing.start
        if blocks > base and (not open_branches or open_branches[-1].blocks < blocks):
            open_branches.append(_Branch(blocks, begin))
        if child is not None:
            if open_branches:
                open_branches[-1].take_over(child)
            else:
                found.extend(child.chosen)
    return sorted(found)


def _sortable(prompts: Sequence[Ints], salts: Sequence[str]) -> list[bytes]:
    """Keys whose order puts equal beginnings side by side; any fixed order of bytes will do."""
    if not any(salts):
        return [p.tobytes() for p in prompts]
    number = {salt: i for i, salt in enumerate(sorted(set(salts)))}
    return [
        number[salt].to_bytes(4, "big") + p.tobytes()
        for p, salt in zip(prompts, salts, strict=True)
    ]


def _num_common(a: Ints, b: Ints) -> int:
    """How many tokens two prompts begin with in common."""
    most = min(len(a), len(b))
    differ = a[:most] != b[:most]
    first = int(differ.argmax()) if most else 0
    return first if first or (most and differ[0]) else most
