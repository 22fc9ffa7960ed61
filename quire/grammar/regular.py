"""Grammars that are regular (choices and plain regexes), followed by quire's own automaton.

llguidance computes the mask of every row anew, 40 us and more each. Here a state has one mask for
all rows in it, computed when the first row comes there. Masks, ends and errors are the same as
llguidance's, which still says which tokens are forced.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from quire.errors import GrammarFailed
from quire.grammar.automaton import DEAD, Automaton
from quire.grammar.matcher import left_to_draw
from quire.grammar.vocabulary import Bits, check_mask
from quire.grammar.walkable import walkable_form
from quire.steps.automata import TokenTexts, WalkableGrammar

if TYPE_CHECKING:
    from llguidance import LLMatcher

# The most bytes of masks; when they are used up, all are dropped and computed again.
_MOST_MASK_BYTES = 32 << 20
_MOST_STEPS = 1 << 18  # (state, token) pairs whose next state is known
_END = -2  # after an end token


class TokenTable:
    """The bytes of a vocabulary's tokens, arranged to follow all of them at once.

    `tokens` have no entry or an empty one for ids that are no text.
    """

    def __init__(self, tokens: Sequence[bytes], eos_ids: Sequence[int], size: int) -> None:
        self.tokens, self.eos_ids, self.size = tokens, frozenset(eos_ids), size
        texts = [(len(text), i) for i, text in enumerate(tokens) if text and i not in self.eos_ids]
        texts.sort(reverse=True)
        # The longest first, so that the tokens with a byte at place n are a prefix of the list.
        self._ids = np.array([i for _, i in texts], np.int64)
        lengths = np.array([length for length, _ in texts], np.int64)
        longest = int(lengths.max(initial=0))
        self._counts = [int((lengths > place).sum()) for place in range(longest)]
        joined = b"".join(tokens[i] for i in self._ids.tolist())
        everything = np.frombuffer(joined, np.uint8)
        starts = np.cumsum(lengths) - lengths
        self._places = [everything[starts[:n] + place] for place, n in enumerate(self._counts)]

    @cached_property
    def texts(self) -> TokenTexts:
        """The same bytes as one array, for a device."""
        texts = [b"" if i in self.eos_ids else text for i, text in enumerate(self.tokens)]
        ends = np.cumsum([len(text) for text in texts], dtype=np.int32)
        offsets = np.full(self.size + 1, ends[-1] if len(ends) else 0, np.int32)
        offsets[0], offsets[1 : len(texts) + 1] = 0, ends
        return TokenTexts(
            offsets, np.frombuffer(b"".join(texts), np.uint8), tuple(sorted(self.eos_ids))
        )

    def mask(self, automaton: Automaton, state: int) -> Bits:
        """The mask of tokens that can follow in this state: those whose bytes all lead on."""
        follows = automaton.follows
        alive = np.arange(len(self._ids))
        states = np.full(len(alive), state, np.int32)
        found: list[npt.NDArray[np.int64]] = []
        for count, column in zip(self._counts, self._places, strict=True):
            # Tokens without more bytes are allowed.
            within = int(np.searchsorted(alive, count))
            found.append(self._ids[alive[within:]])
            alive, states = alive[:within], follows[states[:within], column[alive[:within]]]
            lives = states != DEAD
            alive, states = alive[lives], states[lives]
        found.append(self._ids[alive])
        allowed = np.zeros(-(-self.size // 32) * 32, np.uint8)
        allowed[np.concatenate(found)] = 1
        if automaton.accepts[state]:
            allowed[list(self.eos_ids)] = 1
        return np.packbits(allowed, bitorder="little").view(np.uint32)


class Grammar(Protocol):
    """A compiled grammar, as the matchers here see it."""

    kind: str

    def first(self) -> LLMatcher:
        """llguidance's matcher at the beginning of the grammar."""


class RegularGrammar:
    """An automaton over the tokens of a vocabulary. It may be used on several threads."""

    def __init__(self, grammar: Grammar, automaton: Automaton, tokens: TokenTable) -> None:
        self.grammar, self._automaton, self._tokens = grammar, automaton, tokens
        self._accepts = automaton.accepts.tolist()
        self._ends = (automaton.ends & automaton.accepts).tolist()
        self.forces: list[bool] = automaton.forces.tolist()
        self.may_force = any(self.forces)
        self.walkable: WalkableGrammar | None = None  # made by `prepare_walk`
        self._lock = threading.Lock()
        self._masks: dict[int, Bits] = {}
        self._steps: dict[int, int] = {}
        self._end_mask = np.zeros(-(-tokens.size // 32), np.uint32)
        for token in tokens.eos_ids:
            self._end_mask[token // 32] |= np.uint32(1 << token % 32)

    @property
    def num_bytes(self) -> int:
        table = self._automaton.follows.nbytes
        return table + len(self._masks) * self._end_mask.nbytes + 100 * len(self._steps)

    def matcher(self) -> RegularMatcher:
        return RegularMatcher(self)

    def prepare_walk(self) -> None:
        """Make the form that a device follows by itself, if there is one."""
        if self.walkable is None:
            first = self.grammar.first()
            self.walkable = walkable_form(self._automaton, first, self._tokens.texts)

    def accepts(self, state: int) -> bool:
        return state == _END or self._accepts[state]

    def shares_mask(self, state: int) -> bool:
        """Whether all rows in this state have the same mask, and it allows some token."""
        return state == _END or (not self.forces[state] and bool(self.mask(state).any()))

    def ends(self, state: int) -> bool:
        """Whether nothing but an end token may follow."""
        return state == _END or self._ends[state]

    def step(self, state: int, token: int) -> int:
        """The state after a token, DEAD if the token is not allowed here."""
        key = state * self._tokens.size + token
        found = self._steps.get(key)
        if found is None:
            found = self._walk(state, token)
            with self._lock:
                if len(self._steps) >= _MOST_STEPS:
                    self._steps.clear()
                self._steps[key] = found
        return found

    def _walk(self, state: int, token: int) -> int:
        if token in self._tokens.eos_ids:
            return _END if self.accepts(state) else DEAD
        text = self._tokens.tokens[token] if token < len(self._tokens.tokens) else b""
        if self.ends(state) or not text:
            return DEAD
        for byte in text:
            state = int(self._automaton.follows[state, byte])
            if state == DEAD:
                return DEAD
        return state

    def mask(self, state: int) -> Bits:
        """The mask of a state; read-only."""
        if self.ends(state):
            return self._end_mask
        found = self._masks.get(state)
        if found is None:
            found = self._tokens.mask(self._automaton, state)
            with self._lock:
                if len(self._masks) * found.nbytes >= _MOST_MASK_BYTES:
                    self._masks.clear()
                self._masks[state] = found
        return found


class RegularMatcher:
    """One sequence's place in a regular grammar; has GrammarMatcher's methods (matcher.py)."""

    __slots__ = ("_grammar", "_ll", "_num_told", "_token_ids", "error", "must_draw", "state")

    def __init__(self, grammar: RegularGrammar) -> None:
        self._grammar = grammar
        self.error: GrammarFailed | None = None
        self.state, self._token_ids = 0, list[int]()
        self._ll: LLMatcher | None = None  # made when tokens may be forced
        self._num_told = 0  # tokens that were given to it
        self.must_draw: list[int] = []  # if set, MaskFiller allows only these, one after the other

    @property
    def place(self) -> tuple[RegularGrammar, int]:
        """Equal for matchers that have the same mask."""
        return self._grammar, self.state

    @property
    def may_force(self) -> bool:
        return self._grammar.may_force

    @property
    def walkable(self) -> WalkableGrammar | None:
        return self._grammar.walkable

    @property
    def num_tokens(self) -> int:
        return len(self._token_ids)

    @property
    def is_complete(self) -> bool:
        """Whether the text so far fulfils the grammar and may end here."""
        return self.error is None and self._grammar.accepts(self.state)

    @property
    def is_stopped(self) -> bool:
        """Whether nothing but an end token may follow; false once there is an error."""
        return self.error is None and self._grammar.ends(self.state)

    def fill(self, bits: Bits) -> None:
        """Write the mask of allowed tokens: bit t % 32 of bits[t // 32] allows token t."""
        self._check()
        mask = self._grammar.mask(self.state)
        check_mask(bits, len(mask))
        forced = self.forced()
        bits[:] = 0 if forced else mask
        if forced:
            bits[forced[0] // 32] = 1 << forced[0] % 32
        elif not mask.any():
            raise self.give_up(f"a dead end: no token can follow the {self.num_tokens} so far")

    def accept(self, token_id: int) -> bool:
        """Go on with this token. False if it is not allowed here: then `error` is set and the
        matcher cannot be used any more."""
        self._check()
        state = self._grammar.step(self.state, token_id)
        if state == DEAD:
            self.give_up(f"token {token_id} is not allowed after the {self.num_tokens} so far")
            return False
        if not self._grammar.ends(self.state):  # an end token after the end is not counted
            self.state = state
            self._token_ids.append(token_id)
            if self.must_draw:
                self.must_draw = left_to_draw(self.must_draw, token_id)
        return True

    def try_accept(self, token_id: int) -> bool:
        """Go on with this token if it is allowed here; otherwise nothing changes. Forced tokens are
        not checked: the caller must do that."""
        dead = self.is_stopped or self._grammar.step(self.state, token_id) == DEAD
        return not dead and self.accept(token_id)

    def forced(self) -> list[int]:
        """The tokens that must come next, as the tokenizer spells their text."""
        self._check()
        if self.state == _END or not self._grammar.forces[self.state]:
            return []
        if self._ll is None:
            self._ll, self._num_told = self._grammar.grammar.first(), 0
        new = self._token_ids[self._num_told :]
        if new and not self._ll.consume_tokens(new):
            raise self.give_up(f"it failed after {self.num_tokens} tokens: {self._ll.get_error()}")
        self._num_told = len(self._token_ids)
        return list(self._ll.compute_ff_tokens())

    def fork(self) -> RegularMatcher:
        """An independent matcher at the same place."""
        self._check()
        other = RegularMatcher(self._grammar)
        other.state, other._token_ids = self.state, self._token_ids[:]
        return other

    def give_up(self, why: str) -> GrammarFailed:
        """Fail now; the error is raised by every later call."""
        self.error = GrammarFailed(f"{self._grammar.grammar.kind}: {why}")
        return self.error

    def _check(self) -> None:
        if self.error is not None:
            raise self.error
