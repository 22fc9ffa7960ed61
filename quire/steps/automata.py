"""Regular grammars that a device follows by itself: how their states are numbered and counted.

The states of all such grammars lie one after another in a room that the executor has for them.
This module is the host's half: where each grammar lies, how many rows follow it, and a copy of the
table of states, by which the host judges what rows drew. No torch.

States are numbered over the whole room. After an end token every grammar is in state END.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import count

import numpy as np
import numpy.typing as npt

from quire.request import Ints
from quire.steps.arena import Arena

DEAD, END = -1, 0
NO_TOKEN = -1
MOST_STATES = 16384
# Bytes that the masks of all states may take together, and the fewest states there are.
MOST_LINE_BYTES, LEAST_STATES = 96 << 20, 1024


def num_states_for(vocab_size: int) -> int:
    """How many states a device has room for: each has a mask with a bit for every token."""
    line = -(-vocab_size // 32) * 4
    return min(MOST_STATES, max(LEAST_STATES, MOST_LINE_BYTES // line))


@dataclass(frozen=True, eq=False)
class TokenTexts:
    """The bytes of a vocabulary's tokens, one after another: those of token t are
    texts[offsets[t] : offsets[t + 1]]. End tokens, and ids that are no text, have none."""

    offsets: Ints
    texts: npt.NDArray[np.uint8]
    end_ids: tuple[int, ...]

    @cached_property
    def ends(self) -> npt.NDArray[np.bool_]:
        found = np.zeros(len(self.offsets) - 1, np.bool_)
        found[list(self.end_ids)] = True
        return found


@dataclass(frozen=True, eq=False, slots=True)
class WalkableGrammar:
    """An automaton over bytes, with what a device must know besides.

    follows [states, 256]: the state after a byte, or DEAD; state 0 is the first. ends [states]:
    nothing can follow. forced [states]: the only token that may be drawn there, even if others
    would fit; NO_TOKEN where the bytes decide.
    """

    follows: Ints
    accepts: npt.NDArray[np.bool_]
    ends: npt.NDArray[np.bool_]
    forced: Ints
    texts: TokenTexts

    def __len__(self) -> int:
        return len(self.accepts)


@dataclass(frozen=True, eq=False, slots=True)
class AutomatonPlace:
    """Where a grammar's states lie: its state s is state first + s of the room. A number is never
    used again; a span of states is."""

    number: int
    first: int
    grammar: WalkableGrammar


class AutomatonRoom:
    """Room for `num_states` states. A grammar that no row follows stays until its states are needed
    for another one."""

    def __init__(self, num_states: int) -> None:
        self.follows = np.full((num_states, 256), DEAD, np.int32)
        self.accepts = np.zeros(num_states, np.bool_)
        self.ends = np.zeros(num_states, np.bool_)
        self.accepts[END] = self.ends[END] = True
        self._texts: TokenTexts | None = None
        self._arena = Arena(num_states, first=1)
        self._numbers = count(1)
        self._places: dict[int, AutomatonPlace] = {}
        # In order of use, the longest unused first; and how many rows follow each place.
        self._by_grammar: dict[WalkableGrammar, AutomatonPlace] = {}
        self._holders: dict[int, int] = {}

    @property
    def numbers(self) -> set[int]:
        """The numbers of all places."""
        return set(self._places)

    def place(self, number: int) -> AutomatonPlace:
        return self._places[number]

    def take(self, grammar: WalkableGrammar) -> AutomatonPlace | None:
        """A place for one more row that follows this grammar; None if there is no room."""
        place = self._by_grammar.pop(grammar, None) or self._new(grammar)
        if place is not None:
            self._by_grammar[grammar] = place
            self._holders[place.number] = self._holders.get(place.number, 0) + 1
        return place

    def give(self, number: int) -> None:
        """One row fewer follows the grammar at this place."""
        self._holders[number] -= 1

    def release_all(self) -> None:
        """No row follows any grammar any more."""
        self._holders = dict.fromkeys(self._holders, 0)

    def walk(self, states: Ints, tokens: Ints) -> Ints:
        """The state after each token, DEAD where the grammar forbids it."""
        texts = self._texts
        if texts is None:
            raise RuntimeError("no row walks before a grammar has a place")
        at, last = texts.offsets[tokens], texts.offsets[tokens + 1]
        # The text of an end token is empty; any other token without a text is forbidden.
        is_end = texts.ends[tokens] & self.accepts[states]
        after: Ints = np.where(is_end, END, np.where(at == last, DEAD, states)).astype(np.int32)
        going = np.flatnonzero((at < last) & (after != DEAD))
        while len(going):
            after[going] = self.follows[after[going], texts.texts[at[going]]]
            at[going] += 1
            going = going[(at[going] < last[going]) & (after[going] != DEAD)]
        return after

    def _new(self, grammar: WalkableGrammar) -> AutomatonPlace | None:
        size = len(grammar)
        first = self._arena.take(size)
        unused = [p for p in self._by_grammar.values() if not self._holders[p.number]]
        while first is None and unused:
            self._drop(unused.pop(0))
            first = self._arena.take(size)
        if first is None:
            return None
        here = slice(first, first + size)
        self.follows[here] = np.where(grammar.follows == DEAD, DEAD, grammar.follows + first)
        self.accepts[here], self.ends[here] = grammar.accepts, grammar.ends
        self._texts = grammar.texts
        made = AutomatonPlace(next(self._numbers), first, grammar)
        self._places[made.number] = made
        return made

    def _drop(self, place: AutomatonPlace) -> None:
        del self._by_grammar[place.grammar], self._places[place.number], self._holders[place.number]
        self._arena.give([(place.first, len(place.grammar))])
