"""MaskFiller: fills the masks of many rows, on threads, while the device works.

llguidance fills all rows of a step in one call without Python's lock, so the engine loses no time.
Its fuel limits the work for a mask, but not in every case (limits.py). If a call took longer than
its rows may take, the next one fills and times every row alone, and a row that exceeds its limit
ends with an error of its own.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from quire.base.boundary import for_row
from quire.base.cores import usable_cores
from quire.errors import GrammarFailed, QuireError
from quire.grammar.limits import GrammarLimits
from quire.grammar.matcher import GrammarMatcher
from quire.grammar.regular import RegularGrammar, RegularMatcher
from quire.grammar.vocabulary import Bits, check_mask

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher

# With more threads than this, they wait for memory rather than compute.
_MAX_THREADS = 16

# This thread takes so few tokens faster than it could wake up others.
_FEW = 8

_ALL = np.uint32(0xFFFFFFFF)  # a word of a mask that allows all its tokens
_GRAMMAR = attrgetter("grammar")
_FOLLOWED = "its grammar was followed"

Rows = npt.NDArray[np.uint32]
Matcher = GrammarMatcher | RegularMatcher


def mask_threads() -> int:
    """The number of threads for masks: one core is left for the engine."""
    return max(1, min(_MAX_THREADS, usable_cores() - 1))


@dataclass(frozen=True, slots=True)
class _Asked:
    """Masks to fill, sorted by how they are filled: bits[i] is for matcher i."""

    bits: Rows
    failed: dict[int, GrammarFailed]  # these get no mask
    others: dict[int, GrammarMatcher]
    pairs: list[tuple[LLMatcher, int]]  # `others` in the form for llguidance
    regular: dict[int, RegularMatcher]
    must_draw: dict[int, int]  # only this one token is allowed
    known: tuple[Bits, ...]  # masks of ids that are tokens, of vocabularies with other ids, too

    @staticmethod
    def of(matchers: Sequence[Matcher], bits: Rows) -> _Asked:
        if bits.dtype != np.uint32 or not bits.flags.c_contiguous or len(bits) < len(matchers):
            raise TypeError("masks are a contiguous array of uint32 with a row for each matcher")
        failed = {i: m.error for i, m in enumerate(matchers) if m.error is not None}
        must_draw = {
            i: m.must_draw[0] for i, m in enumerate(matchers) if m.must_draw and m.error is None
        }
        others = _followed_by_llguidance(matchers)
        if must_draw:
            others = {i: m for i, m in others.items() if i not in must_draw}
        counts = Counter(map(_GRAMMAR, others.values()))
        for grammar, count in counts.items():
            grammar.target(bits[0])
            grammar.count_fills(count)
        known = {id(k): k for grammar in counts if (k := grammar.known) is not None}
        regular: dict[int, RegularMatcher] = {}
        if len(others) < len(matchers):
            regular = {i: m for i, m in enumerate(matchers) if isinstance(m, RegularMatcher)}
            regular = {i: m for i, m in regular.items() if i not in failed and i not in must_draw}
        pairs = [(m.ll, i) for i, m in others.items()]
        return _Asked(bits, failed, others, pairs, regular, must_draw, tuple(known.values()))

    def leave_known(self) -> None:
        """Remove ids that are no tokens, which are the last ones, from the masks."""
        for known in self.known:
            rows = [i for i, m in self.others.items() if m.grammar.known is known]
            first = int((known != _ALL).argmax())
            self.bits[rows, first:] &= known[first:]


class MaskFiller:
    """Fills masks, in one call at a time."""

    def __init__(self, num_threads: int | None = None, limits: GrammarLimits | None = None) -> None:
        self.num_threads = num_threads or mask_threads()
        self._limit = (limits or GrammarLimits()).mask_seconds
        self._aside = ThreadPoolExecutor(1, thread_name_prefix="quire-masks")
        self._executor: LLExecutor | None = None
        self._one_by_one = False

    def start(self, matchers: Sequence[Matcher], bits: Rows) -> Future[Mapping[int, GrammarFailed]]:
        """Begin to fill bits[i] for matchers[i], and return at once."""
        # Sorted on this thread, so that the other thread holds Python's lock only for moments, and
        # the caller goes on meanwhile.
        return self._aside.submit(self._fill, _Asked.of(matchers, bits))

    def fill(self, matchers: Sequence[Matcher], bits: Rows) -> Mapping[int, GrammarFailed]:
        """Fill bits[i] for matchers[i]; returns the errors of rows that have no mask, by index.

        bits is [rows, words] with at least as many rows as matchers, of any content. The mask of a
        row with an error is all zeros. The list may not contain a matcher twice.
        """
        return self._fill(_Asked.of(matchers, bits))

    def _fill(self, asked: _Asked) -> Mapping[int, GrammarFailed]:
        bits, failed = asked.bits, dict(asked.failed)
        if self._one_by_one:
            failed |= self._fill_each(asked.others, bits)
        elif asked.others:
            self._fill_together(asked)
        for i in [i for i, m in asked.others.items() if m.ll.is_error() and i not in failed]:
            try:
                asked.others[i].settle(bits[i])
            except GrammarFailed as error:
                failed[i] = error
        asked.leave_known()
        failed |= _fill_regular(asked.regular, bits)
        for i, token in asked.must_draw.items():
            bits[i] = 0
            bits[i, token // 32] = 1 << token % 32
        for i in failed:
            bits[i] = 0
        return failed

    def accept(self, matchers: Sequence[Matcher], tokens: Sequence[int]) -> list[bool | QuireError]:
        """Give each matcher its token; returns whether the grammar allowed it, or the error that
        was raised. The list may not contain a matcher twice."""
        others = _followed_by_llguidance(matchers)
        if len(others) < _FEW:
            others = {}
        accepted: list[bool | QuireError] = [True] * len(matchers)
        if len(others) < len(matchers):
            for i, matcher in enumerate(matchers):
                if i not in others:
                    accepted[i] = for_row(_FOLLOWED, matcher.accept, tokens[i])
        if not others:
            return accepted
        pairs = [(m.ll, tokens[i]) for i, m in others.items()]
        stopped = [ll.is_stopped() for ll, _ in pairs]
        taken = self._started().consume_token_par(pairs)
        for (i, matcher), was_taken, had_stopped in zip(
            others.items(), taken, stopped, strict=True
        ):
            if was_taken and not had_stopped:
                matcher.went_on(tokens[i])
            else:
                accepted[i] = for_row(
                    _FOLLOWED, matcher.accepted, tokens[i], taken=was_taken, stopped=had_stopped
                )
        return accepted

    def close(self) -> None:
        self._aside.shutdown(wait=True)

    def _fill_together(self, asked: _Asked) -> None:
        bits, started = asked.bits, time.perf_counter()
        self._started().unsafe_compute_mask_ptr(
            asked.pairs, bits.ctypes.data, bits.strides[0], len(bits)
        )
        rounds = -(-len(asked.pairs) // self.num_threads)
        self._one_by_one = time.perf_counter() - started > self._limit * rounds

    def _fill_each(
        self, matchers: Mapping[int, GrammarMatcher], bits: Rows
    ) -> dict[int, GrammarFailed]:
        """Fill row by row on this thread, each timed by processor time, so that a busy machine does
        not count."""
        self._one_by_one = False
        slow: dict[int, GrammarFailed] = {}
        for i, matcher in matchers.items():
            started = time.thread_time()
            matcher.fill_raw(bits[i])
            took = time.thread_time() - started
            if took > self._limit:
                slow[i] = matcher.give_up(
                    f"the mask of one token took {took:.2f} s, and at most {self._limit} s are "
                    "given; make it simpler"
                )
        return slow

    def _started(self) -> LLExecutor:
        if self._executor is None:
            from llguidance import LLExecutor

            self._executor = LLExecutor(self.num_threads)
        return self._executor


def _followed_by_llguidance(matchers: Sequence[Matcher]) -> dict[int, GrammarMatcher]:
    """The matchers of llguidance without an error, by index. Matchers with the same lexer would
    wait for each other: side by side, they go to one thread."""
    found = {
        i: m for i, m in enumerate(matchers) if isinstance(m, GrammarMatcher) and m.error is None
    }
    return {i: found[i] for i in sorted(found, key=lambda i: found[i].share)}


def _fill_regular(matchers: Mapping[int, RegularMatcher], bits: Rows) -> dict[int, GrammarFailed]:
    """Fill masks of regular grammars; returns errors. Rows in one state share a mask."""
    together: dict[tuple[RegularGrammar, int], list[int]] = {}
    for i, matcher in matchers.items():
        together.setdefault(matcher.place, []).append(i)
    failed: dict[int, GrammarFailed] = {}
    for (grammar, state), rows in together.items():
        if grammar.shares_mask(state):
            check_mask(bits[0], len(grammar.mask(state)))
            bits[rows] = grammar.mask(state)
            continue
        for i in rows:
            try:
                matchers[i].fill(bits[i])
            except GrammarFailed as error:
                failed[i] = error
    return failed
