"""A regular language as an automaton over bytes: states are numbers, 0 is the first.

Bounded: None is returned for a language that needs more states than `MAX_STATES`, or too much work
to find them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quire.grammar.parts import AnyOf, Both, InOrder, Multiple, OneOf, Part, Repeated, Without

MAX_STATES = 4096
_MAX_NODES = 40_000
_MAX_WORK = 500_000  # nodes visited while states are found
DEAD = -1

ByteRanges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Automaton:
    """follows [states, 256] int32: the state after a byte, DEAD where no text goes on like that.
    From every state a text can still come to its end."""

    follows: npt.NDArray[np.int32]
    accepts: npt.NDArray[np.bool_]

    @property
    def ends(self) -> npt.NDArray[np.bool_]:
        """The states after which nothing can follow."""
        found: npt.NDArray[np.bool_] = (self.follows == DEAD).all(axis=1)
        return found

    @property
    def forces(self) -> npt.NDArray[np.bool_]:
        """The states in which a text cannot end and only one byte can follow."""
        found: npt.NDArray[np.bool_] = ~self.accepts & ((self.follows != DEAD).sum(axis=1) == 1)
        return found


class _TooLargeError(Exception):
    """The automaton would be larger than the bounds."""


def automaton_of(part: Part) -> Automaton | None:
    """The automaton of a part; None if it would be too large, or if the part has no text."""
    try:
        return _made(part)
    except (_TooLargeError, RecursionError):
        return None


def _made(part: Part) -> Automaton | None:
    nodes = _Nodes()
    last = nodes.new()
    return _determined(nodes, nodes.before(part, last), last)


class _Nodes:
    """Places between characters, with steps to others by a range of bytes, or freely by none.

    They are made from the end of the text backwards, so that equal continuations exist once.
    """

    def __init__(self) -> None:
        self.steps: list[list[tuple[int, int, int]]] = []
        self._freely: list[list[int]] = []
        self._made: dict[tuple[object, int], tuple[int, object]] = {}
        self._closures: dict[int, frozenset[int]] = {}

    def new(self, freely: Iterable[int] = ()) -> int:
        if len(self.steps) == _MAX_NODES:
            raise _TooLargeError
        self.steps.append([])
        self._freely.append(list(freely))
        return len(self.steps) - 1

    def before(self, part: Part, after: int) -> int:
        """The node from which the texts of the part lead to node `after`."""
        key = (part.ranges if isinstance(part, OneOf) else id(part), after)
        made = self._made.get(key)
        if made is None:
            made = self._make(part, after), part  # keeps the part alive, so its id is not reused
            self._made[key] = made
        return made[0]

    def _make(self, part: Part, after: int) -> int:
        if isinstance(part, OneOf):
            return self._character(part, after)
        if isinstance(part, InOrder):
            for one in reversed(part.parts):
                after = self.before(one, after)
            return after
        if isinstance(part, AnyOf):
            return self.new([self.before(one, after) for one in part.parts])
        if isinstance(part, Repeated):
            return self._repeated(part, after)
        made = _multiples(part.of) if isinstance(part, Multiple) else _combined(part)
        return self._states(made, after)

    def _character(self, part: OneOf, after: int) -> int:
        node = self.new()
        for ranges in _in_bytes(part.ranges):
            at = after
            for low, high in reversed(ranges[1:]):
                key = ((low, high), at)
                if key not in self._made:
                    self._made[key] = self.new(), None
                    self.steps[self._made[key][0]].append((low, high, at))
                at = self._made[key][0]
            self.steps[node].append((*ranges[0], at))
        return node

    def _repeated(self, part: Repeated, after: int) -> int:
        at = after
        if part.most is None:
            at = self.new([after])
            self._freely[at].append(self.before(part.part, at))
        else:
            for _ in range(part.most - part.least):
                at = self.new([after, self.before(part.part, at)])
        for _ in range(part.least):
            at = self.before(part.part, at)
        return at

    def _states(self, automaton: Automaton, after: int) -> int:
        first = self.new()
        for _ in automaton.accepts[1:]:
            self.new()
        for state, line in enumerate(automaton.follows):
            if automaton.accepts[state]:
                self._freely[first + state].append(after)
            edges = [0, *(np.flatnonzero(np.diff(line)) + 1).tolist(), 256]
            for low, high in zip(edges, edges[1:], strict=False):
                if line[low] != DEAD:
                    self.steps[first + state].append((low, high - 1, first + int(line[low])))
        return first

    def closure(self, nodes: Iterable[int]) -> frozenset[int]:
        """Nodes reachable by free steps, without nodes that have only free steps."""
        found: frozenset[int] = frozenset()
        return found.union(*map(self._closure, nodes))

    def _closure(self, node: int) -> frozenset[int]:
        found = self._closures.get(node)
        if found is None:
            seen, left = {node}, [node]
            while left:
                new = [to for to in self._freely[left.pop()] if to not in seen]
                seen.update(new)
                left += new
            found = frozenset(one for one in seen if self.steps[one] or not self._freely[one])
            self._closures[node] = found
        return found


def _determined(nodes: _Nodes, first: int, last: int) -> Automaton | None:
    """An automaton whose states are sets of nodes."""
    start = nodes.closure([first])
    numbers, states = {start: 0}, [start]
    closed: dict[frozenset[int], int] = {}
    lines: list[npt.NDArray[np.int32]] = []
    work = 0
    while len(lines) < len(states):
        here = states[len(lines)]
        line = np.full(256, DEAD, np.int32)
        for low, high, reached in _ways(nodes, here):
            work += len(reached)
            if reached not in closed:
                state = nodes.closure(reached)
                work += len(state)
                if state not in numbers:
                    numbers[state] = len(states)
                    states.append(state)
                closed[reached] = numbers[state]
            line[low:high] = closed[reached]
        lines.append(line)
        work += len(here)
        if len(states) > MAX_STATES or work > _MAX_WORK:
            raise _TooLargeError
    return _living(np.array(lines), np.array([last in state for state in states], np.bool_))


def _ways(nodes: _Nodes, state: frozenset[int]) -> Iterable[tuple[int, int, frozenset[int]]]:
    """(first byte, byte after the last, nodes that these bytes lead to) for each range."""
    steps = [step for node in state for step in nodes.steps[node]]
    edges = sorted({low for low, _, _ in steps} | {high + 1 for _, high, _ in steps})
    reached: list[list[int]] = [[] for _ in edges]
    for low, high, to in steps:
        for i in range(bisect_left(edges, low), bisect_left(edges, high + 1)):
            reached[i].append(to)
    for low, high, found in zip(edges, edges[1:], reached, strict=False):
        if found:
            yield low, high, frozenset(found)


def _multiples(of: int) -> Automaton:
    """An automaton of decimal multiples: a state per remainder, and one before the first digit."""
    before = np.concatenate([[0], np.arange(of)])
    follows = np.full((of + 1, 256), DEAD, np.int32)
    follows[:, ord("0") : ord("9") + 1] = (before[:, None] * 10 + np.arange(10)) % of + 1
    return Automaton(follows, np.arange(of + 1) == 1)


def _combined(part: Both | Without) -> Automaton:
    """An automaton whose states are pairs of states of both parts' automata."""
    one, other = _made(part.one), _made(part.other)
    if one is None or other is None:
        raise _TooLargeError
    is_both = isinstance(part, Both)
    numbers, pairs = {(0, 0): 0}, [(0, 0)]
    lines: list[npt.NDArray[np.int32]] = []
    nowhere = np.full(256, DEAD, np.int32)
    while len(lines) < len(pairs):
        mine, theirs = pairs[len(lines)]
        left, right = one.follows[mine], nowhere if theirs == DEAD else other.follows[theirs]
        lives = (left != DEAD) & (right != DEAD) if is_both else left != DEAD
        line = nowhere.copy()
        for pair in set(zip(left[lives].tolist(), right[lives].tolist(), strict=True)):
            if pair not in numbers:
                numbers[pair] = len(pairs)
                pairs.append(pair)
            line[lives & (left == pair[0]) & (right == pair[1])] = numbers[pair]
        lines.append(line)
        if len(pairs) > MAX_STATES:
            raise _TooLargeError
    accepts = [
        bool(one.accepts[a]) and is_both == (b != DEAD and bool(other.accepts[b])) for a, b in pairs
    ]
    made = _living(np.array(lines), np.array(accepts, np.bool_))
    if made is None:
        raise _TooLargeError
    return made


def _living(follows: npt.NDArray[np.int32], accepts: npt.NDArray[np.bool_]) -> Automaton | None:
    """The automaton without states from which no text can end; None if no text is left."""
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
    """Characters in UTF-8, as sequences with one range per byte.

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
    """Split a range of characters with equally many bytes: the part that one sequence of ranges can
    express goes to `found`, the rest to `left`."""
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
