"""CompiledGrammar: a compiled grammar, which any number of sequences can follow."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING

from quire.grammar.automaton import Automaton
from quire.grammar.door import errors_as_refusals
from quire.grammar.limits import GrammarLimits, parser_limits
from quire.grammar.matcher import GrammarMatcher
from quire.grammar.regular import RegularGrammar, RegularMatcher, TokenTable
from quire.grammar.vocabulary import Bits, check_mask

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

# The size of a compiled grammar, measured with llguidance 1.9.1 on schemas of 200 B .. 26 KB and
# some regexes: 50 KB and 36 bytes per byte of text, then 1.5 .. 60 KB for each mask until the lexer
# has all the states it needs, or may have, of 1 .. 2 KB each.
_BASE_BYTES, _BYTES_PER_BYTE, _BYTES_PER_MASK, _BYTES_PER_STATE = 64 * 1024, 40, 16 * 1024, 2048
# A lexer works for one thread at a time, so a grammar with many rows gets several lexers.
_ROWS_PER_LEXER = 4
_CHEAP_SECONDS = 0.05
_NUMBERS = count()  # numbers of lexers, over all grammars


class CompiledGrammar:
    """`text` compiled for one vocabulary. It may be used on several threads."""

    def __init__(
        self,
        kind: str,
        text: str,
        tokenizer: LLTokenizer,
        *,
        known: Bits | None,
        limits: GrammarLimits,
        num_lexers: int,
        automaton: Automaton | None = None,
        tokens: Callable[[], TokenTable] | None = None,
        late_automaton: Callable[[], Automaton | None] = lambda: None,
    ) -> None:
        """`automaton`: over the bytes of `tokens`, if the grammar is regular. `late_automaton`
        makes an automaton that pays only if a device follows it."""
        self.kind, self.text, self.known = kind, text, known
        self._tokenizer, self._limits, self._max_lexers = tokenizer, limits, num_lexers
        self._lock = threading.Lock()
        self._num_words = -(-tokenizer.vocab_size // 32)
        self._num_dealt = self._num_filled = 0
        started = time.perf_counter()
        first = self.build()
        if not first.is_error():
            first.compute_bitmask()  # finds grammars without any text; also warms the lexer up
        self.error: str = first.get_error()  # why llguidance cannot follow the grammar, or ""
        self._seconds = time.perf_counter() - started
        self._shares: dict[int, LLMatcher] = {next(_NUMBERS): first}
        self._regular: RegularGrammar | None = None
        self._tokens, self._late_automaton = tokens, late_automaton
        if not self.error:
            self._use(automaton)

    @property
    def num_bytes(self) -> int:
        """About how many bytes the grammar takes, with its lexers."""
        states = min(
            self._num_filled * _BYTES_PER_MASK,
            len(self._shares) * self._limits.lexer_states * _BYTES_PER_STATE,
        )
        regular = 0 if self._regular is None else self._regular.num_bytes
        return (
            len(self._shares) * (_BASE_BYTES + _BYTES_PER_BYTE * len(self.text)) + states + regular
        )

    def _use(self, automaton: Automaton | None) -> None:
        if automaton is not None and self._tokens is not None:
            self._regular = RegularGrammar(self, automaton, self._tokens())
            self._tokens = None  # it refers to the compiler, and so to the tokenizer

    def prepare_walk(self) -> None:
        """Make the form that a device follows by itself, if there is one: matchers made from now on
        have it. Takes a tenth of a second or more."""
        if self._regular is None:
            self._use(self._late_automaton())
        if self._regular is not None:
            self._regular.prepare_walk()

    def matcher(self) -> GrammarMatcher | RegularMatcher:
        return self.llguidance_matcher() if self._regular is None else self._regular.matcher()

    def first(self) -> LLMatcher:
        return self.llguidance_matcher().ll

    def llguidance_matcher(self) -> GrammarMatcher:
        """A matcher that uses llguidance, even if the grammar is regular."""
        with errors_as_refusals(self.kind), self._lock:
            self._num_dealt += 1
            wanted = min(self._max_lexers, 1 + self._num_dealt // _ROWS_PER_LEXER)
            if not self._shares or (len(self._shares) < wanted and self._seconds < _CHEAP_SECONDS):
                self._shares[next(_NUMBERS)] = self.build()
            numbers = list(self._shares)
            share = numbers[self._num_dealt % len(numbers)]
            return GrammarMatcher(self, self._shares[share].deep_copy(), share)

    def build(self) -> LLMatcher:
        """A matcher of llguidance with a lexer of its own."""
        from llguidance import LLMatcher

        limits = parser_limits(self._limits.lexer_states)
        return LLMatcher(self._tokenizer, self.text, log_level=0, limits=limits)

    def retire(self, share: int) -> None:
        """This lexer failed: give it to no more matchers."""
        with self._lock:
            self._shares.pop(share, None)

    def count_fills(self, count: int) -> None:
        self._num_filled += count  # not locked: a lost count does no harm

    def target(self, bits: Bits) -> tuple[int, int]:
        """Where llguidance writes a mask: (address, number of bytes)."""
        check_mask(bits, self._num_words)
        return bits.ctypes.data, bits.nbytes
