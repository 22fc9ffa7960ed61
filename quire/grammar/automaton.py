"""A regular language as an automaton over bytes: states by number, 0 the first.

Bounded: a language that needs more states than `MAX_STATES`, or too much work to find them, has no
automaton here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from quire.grammar.plain_regex import AnyOf, InOrder, OneOf, Part, Repeated

MAX_STATES = 4096
_MAX_NODES = 20_000
_MAX_WORK = 500_000  # nodes looked at while states are found
DEAD = -1

ByteRanges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Automaton:
    """follows [states, 256] int32: the state after a byte, DEAD where no text goes on so. From
    every state a text can come to its end."""

    follows: npt.NDArray[np.int32]
    accepts: npt.NDArray[np.bool_]

    @property
    def ends(self) -> npt.NDArray[np.bool_]:
        """The states after which nothing can follow."""
        found: npt.NDArray[np.bool_] = (self.follows == DEAD).all(axis=1)
        return found

    @property
    def forces(self) -> npt.NDArray[np.bool_]:
        """The states after which one byte alone can follow."""
        found: npt.NDArray[np.bool_] = ~self.accepts & ((self.follows != DEAD).sum(axis=1) == 1)
        return found


class _TooLargeError(Exception):
    """There is no automaton within the bounds."""


def automaton_of(part: Part) -> Automaton | None:
    """None where it would be too large, or where there is no text at all."""
    try:
        nodes = _Nodes()
        first, last = nodes.new(), nodes.new()
        nodes.add(part, first, last)
        return _determined(nodes, first, last)
    except _TooLargeError:
        return None


@dataclass(slots=True)
class _Nodes:
    """Places between characters: steps by a range of bytes, or by nothing."""

    by_bytes: list[list[tuple[int, int, int]]] = field(default_factory=list)
    freely: list[list[int]] = field(default_factory=list)

    def new(self) -> int:
        if len(self.freely) == _MAX_NODES:
            raise _TooLargeError
        self.by_bytes.append([])
        self.freely.append([])
        return len(self.freely) - 1

    def add(self, part: Part, first: int, last: int) -> None:
        """Ways from node `first` to node `last` by the texts of the part."""
        if isinstance(part, OneOf):
            for ranges in _in_bytes(part.ranges):
                at = first
                for low, high in ranges[:-1]:
                    at, before = self.new(), at
                    self.by_bytes[before].append((low, high, at))
                self.by_bytes[at].append((*ranges[-1], last))
        elif isinstance(part, AnyOf):
            for one in part.parts:
                self.add(one, first, last)
        elif isinstance(part, InOrder):
            for one in part.parts:
                at, first = first, self.new()
                self.add(one, at, first)
            self.freely[first].append(last)
        else:
            self._repeat(part, first, last)

    def _repeat(self, part: Repeated, first: int, last: int) -> None:
        at = first
        for _ in range(part.least):
            before, at = at, self.new()
            self.add(part.part, before, at)
        if part.most is None:
            again = self.new()
            self.freely[at].append(again)
            self.freely[again].append(last)
            self.add(part.part, again, again)
            return
        self.freely[at].append(last)
        for _ in range(part.most - part.least):
            before, at = at, self.new()
            self.add(part.part, before, at)
            self.freely[at].append(last)

    def closure(self, nodes: Iterable[int]) -> frozenset[int]:
        """These, and what can be reached from them by nothing."""
        found, left = set(nodes), list(nodes)
        while left:
            for node in self.freely[left.pop()]:
                if node not in found:
                    found.add(node)
                    left.append(node)
        return frozenset(found)


def _determined(nodes: _Nodes, first: int, last: int) -> Automaton | None:
    """An automaton whose states are sets of nodes."""
    edges = {0, 256}
    for steps in nodes.by_bytes:
        for low, high, _ in steps:
            edges |= {low, high + 1}
    borders = sorted(edges)  # bytes between two of these are alike everywhere
    start = nodes.closure([first])
    numbers, states = {start: 0}, [start]
    follows: list[list[int]] = []
    work = 0
    while len(follows) < len(states):
        here = states[len(follows)]
        work += len(here)
        ways: dict[int, list[int]] = {}
        for node in here:
            for low, high, to in nodes.by_bytes[node]:
                for border in borders[bisect_left(borders, low) : bisect_left(borders, high + 1)]:
                    ways.setdefault(border, []).append(to)
        line = []
        closed: dict[frozenset[int], int] = {}
        for border in borders[:-1]:
            reached = frozenset(ways.get(border, ()))
            if reached and reached not in closed:
                state = nodes.closure(reached)
                work += len(state)
                if state not in numbers:
                    numbers[state] = len(states)
                    states.append(state)
                closed[reached] = numbers[state]
            line.append(closed[reached] if reached else DEAD)
        follows.append(line)
        if len(states) > MAX_STATES or work > _MAX_WORK:
            raise _TooLargeError
    widths = np.diff(borders)
    table = np.repeat(np.array(follows, np.int32), widths, axis=1)
    return _living(table, np.array([last in state for state in states], np.bool_))


def _living(follows: npt.NDArray[np.int32], accepts: npt.NDArray[np.bool_]) -> Automaton | None:
    """Without states from which no text comes to its end."""
    sources: list[set[int]] = [set() for _ in accepts]
    for state, line in enumerate(follows):
        for to in np.unique(line[line != DEAD]).tolist():
            sources[to].add(state)
    lives, left = accepts.copy(), np.flatnonzero(accepts).tolist()
    while left:
        for state in sources[left.pop()]:
            if not lives[state]:
                lives[state] = True
                left.append(state)
    if not lives[0]:
        return None
    numbers = np.where(lives, np.cumsum(lives) - 1, DEAD).astype(np.int32)
    kept = follows[lives]
    return Automaton(np.where(kept == DEAD, DEAD, numbers[kept]).astype(np.int32), accepts[lives])


def _in_bytes(ranges: tuple[tuple[int, int], ...]) -> list[ByteRanges]:
    """Characters in UTF-8: each of the results is a range for every byte.

    0x61 .. 0xE9 -> [(61, 7F)], [(C2, C2), (80, BF)], [(C3, C3), (80, A9)]
    """
    found: list[ByteRanges] = []
    left = list(ranges)
    while left:
        first, last = left.pop()
        for limit in (0x7F, 0x7FF, 0xFFFF):
            if first <= limit < last:
                left += [(limit + 1, last), (first, limit)]
                break
        else:
            _split(first, last, left, found)
    return found


def _split(first: int, last: int, left: list[tuple[int, int]], found: list[ByteRanges]) -> None:
    """Of characters that are equally long: what a range for each byte can say, the rest is left."""
    for low in (6, 12, 18):  # bits of the last bytes
        size = 1 << low
        if last < 0x80 or (first >> low) == (last >> low):
            break
        if first & (size - 1):
            left += [((first | (size - 1)) + 1, last), (first, first | (size - 1))]
            return
        if last & (size - 1) != size - 1:
            left += [(last & ~(size - 1), last), (first, (last & ~(size - 1)) - 1)]
            return
    found.append(tuple(zip(chr(first).encode(), chr(last).encode(), strict=True)))
