"""Regular grammars in the form that a device follows by itself (steps/automata.py).

The device draws every token, also those that the host would give a row without drawing. So it must
know the token that is forced in each state, and following these one by one must give the same
tokens as forcing all at once. Grammars where that is not so have no such form.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from quire.grammar.automaton import DEAD, Automaton
from quire.steps.automata import NO_TOKEN, TokenTexts, WalkableGrammar

if TYPE_CHECKING:
    from llguidance import LLMatcher

    from quire.request import Ints


def walkable_form(
    automaton: Automaton, first: LLMatcher, texts: TokenTexts
) -> WalkableGrammar | None:
    """The form for a device, or None. `first`, llguidance's matcher at the start, is used up."""
    by_byte = _byte_tokens(texts)
    leads = (automaton.follows != DEAD) & (by_byte != NO_TOKEN)
    # Every state must have a token that leads on, and be reachable by single-byte tokens.
    if not (leads.any(axis=1) | automaton.ends).all():
        return None
    forced = _forced_tokens(automaton, first, by_byte, leads)
    if forced is None or not _is_consistent(automaton, forced, texts):
        return None
    only = np.full(len(automaton.accepts), NO_TOKEN, np.int32)
    for state, tokens in forced.items():
        only[state] = tokens[0] if tokens else NO_TOKEN
    return WalkableGrammar(automaton.follows, automaton.accepts, automaton.ends, only, texts)


def _byte_tokens(texts: TokenTexts) -> Ints:
    """For every byte the token that consists of it alone. [256]"""
    found = np.full(256, NO_TOKEN, np.int32)
    single = np.flatnonzero(np.diff(texts.offsets) == 1)
    found[texts.texts[texts.offsets[single]]] = single
    return found


def _forced_tokens(
    automaton: Automaton, first: LLMatcher, by_byte: Ints, leads: npt.NDArray[np.bool_]
) -> dict[int, list[int]] | None:
    """The tokens that are forced in each state with a single way on. They depend on the state only,
    so llguidance is led there byte by byte. None if that is not possible."""
    is_forced = automaton.forces
    forces = np.flatnonzero(is_forced)
    if not len(forces):
        return {}
    came_from = _parents(automaton, leads)
    if (came_from[forces, 0] == DEAD).any():
        return None
    found: dict[int, list[int]] = {}
    path: list[int] = [0]
    for state in _in_order(came_from, forces):
        parent, byte = came_from[state].tolist()
        if state:
            back = len(path) - 1 - path.index(parent)
            del path[len(path) - back :]
            if back and not first.rollback(back):
                return None
            if not first.consume_token(int(by_byte[byte])):
                return None
            path.append(state)
        if is_forced[state]:
            found[state] = list(first.compute_ff_tokens())
    return found


def _parents(automaton: Automaton, leads: npt.NDArray[np.bool_]) -> Ints:
    """(state, byte) from which each state is first reached; DEAD if it is not reachable."""
    found = np.full((len(automaton.accepts), 2), DEAD, np.int32)
    found[0, 0] = 0
    left = [0]
    while left:
        state = left.pop()
        ways = np.flatnonzero(leads[state])
        reached, nth = np.unique(automaton.follows[state, ways], return_index=True)
        new = found[reached, 0] == DEAD
        found[reached[new]] = np.stack([np.full(new.sum(), state), ways[nth[new]]], axis=1)
        left += reached[new].tolist()
    return found


def _in_order(came_from: Ints, wanted: npt.NDArray[np.int64]) -> Iterator[int]:
    """The states on the ways to the wanted ones, depth first: each follows its parent, with all
    states that are reached from it before any others."""
    on_way: set[int] = set()
    for state in wanted.tolist():
        while state not in on_way:
            on_way.add(state)
            state = int(came_from[state, 0])
    following: dict[int, list[int]] = {}
    for state in sorted(on_way - {0}):
        following.setdefault(int(came_from[state, 0]), []).append(state)
    left = [0]
    while left:
        state = left.pop()
        yield state
        left += following.get(state, [])


def _is_consistent(automaton: Automaton, forced: dict[int, list[int]], texts: TokenTexts) -> bool:
    """Whether after the first of several forced tokens the others are forced, too. They are not
    where a character is split over tokens."""
    for state, tokens in forced.items():
        if len(tokens) < 2:
            continue
        after = state
        for byte in texts.texts[texts.offsets[tokens[0]] : texts.offsets[tokens[0] + 1]].tolist():
            after = int(automaton.follows[after, byte])
        if forced.get(after, [])[: len(tokens) - 1] != tokens[1:]:
            return False
    return True
