"""MaskFiller: the masks of many rows, in threads, while the device works.

llguidance fills all rows of a step in one call without Python's lock, so the engine loses no time
to it. Its fuel bounds the work for a mask, but not in every case (limits.py). When a call took
longer than its rows may, the next one times every row by itself, and a row that goes beyond its
limit ends with its own error.
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

# Beyond this, more threads wait for memory rather than compute.
_MAX_THREADS = 16

# So few tokens are taken by this thread before others have woken up.
_FEW = 8

_ALL = np.uint32(0xFFFFFFFF)  # tokens of a word
_GRAMMAR = attrgetter("grammar")
_FOLLOWED = "its grammar was followed"

Rows = npt.NDArray[np.uint32]
Matcher = GrammarMatcher | RegularMatcher


def mask_threads() -> int:
    """Threads for masks: one core stays with the engine."""
    return max(1, min(_MAX_THREADS, usable_cores() - 1))


@dataclass(frozen=True, slots=True)
class _Asked:
    """Masks to be filled, by who fills them: bits[i] for the matcher under i."""

    bits: Rows
    failed: dict[int, GrammarFailed]  # there is nothing to fill
    others: dict[int, GrammarMatcher]
    pairs: list[tuple[LLMatcher, int]]  # these, as llguidance wants them
    regular: dict[int, RegularMatcher]
    owed: dict[int, int]  # one token, and nothing else
    known: tuple[Bits, ...]  # ids that have a token, where not all of some vocabulary have one

    @staticmethod
    def of(matchers: Sequence[Matcher], bits: Rows) -> _Asked:
        if bits.dtype != np.uint32 or not bits.flags.c_contiguous or len(bits) < len(matchers):
            raise TypeError("masks are a contiguous array of uint32 with a row for each matcher")
        failed = {i: m.error for i, m in enumerate(matchers) if m.error is not None}
        owed = {i: m.owed[0] for i, m in enumerate(matchers) if m.owed and m.error is None}
        others = _followed_by_llguidance(matchers)
        if owed:
            others = {i: m for i, m in others.items() if i not in owed}
        counts = Counter(map(_GRAMMAR, others.values()))
        for grammar, count in counts.items():
            grammar.target(bits[0])
            grammar.count_fills(count)
        known = {id(k): k for grammar in counts if (k := grammar.known) is not None}
        regular: dict[int, RegularMatcher] = {}
        if len(others) < len(matchers):
            regular = {i: m for i, m in enumerate(matchers) if isinstance(m, RegularMatcher)}
            regular = {i: m for i, m in regular.items() if i not in failed and i not in owed}
        pairs = [(m.ll, i) for i, m in others.items()]
        return _Asked(bits, failed, others, pairs, regular, owed, tuple(known.values()))

    def leave_known(self) -> None:
        """Without ids that have no token, which are the last ones."""
        for known in self.known:
            rows = [i for i, m in self.others.items() if m.grammar.known is known]
            first = int((known != _ALL).argmax())
            self.bits[rows, first:] &= known[first:]


class MaskFiller:
    """Fills masks; one call at a time."""

    def __init__(self, num_threads: int | None = None, limits: GrammarLimits | None = None) -> None:
        self.num_threads = num_threads or mask_threads()
        self._limit = (limits or GrammarLimits()).mask_seconds
        self._aside = ThreadPoolExecutor(1, thread_name_prefix="quire-masks")
        self._executor: LLExecutor | None = None
        self._one_by_one = False

    def start(self, matchers: Sequence[Matcher], bits: Rows) -> Future[Mapping[int, GrammarFailed]]:
        """Begin to fill bits[i] for matchers[i], and return at once."""
        # Sorted here: the other thread then holds Python's lock for moments alone, and the caller
        # goes on meanwhile.
        return self._aside.submit(self._fill, _Asked.of(matchers, bits))

    def fill(self, matchers: Sequence[Matcher], bits: Rows) -> Mapping[int, GrammarFailed]:
        """Fill bits[i] for matchers[i]; the errors of the rows that have no mask, by index.

        bits is [rows, words] with at least as many rows as matchers, of any content. The mask of a
        row with an error is all zeros. A matcher may not stand in the list twice.
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
        for i, token in asked.owed.items():
            bits[i] = 0
            bits[i, token // 32] = 1 << token % 32
        for i in failed:
            bits[i] = 0
        return failed

    def accept(self, matchers: Sequence[Matcher], tokens: Sequence[int]) -> list[bool | QuireError]:
        """Have each matcher go on with its token; says which of them could, or what was raised for
        one of them. A matcher may not stand in the list twice."""
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
        """The same row by row, in this thread, each on its own clock: how busy the machine is
        does not count."""
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
    """Those of them that are without an error, by their index. Matchers with the same lexer wait
    for each other: put together, they go to one thread."""
    found = {
        i: m for i, m in enumerate(matchers) if isinstance(m, GrammarMatcher) and m.error is None
    }
    return {i: found[i] for i in sorted(found, key=lambda i: found[i].share)}


def _fill_regular(matchers: Mapping[int, RegularMatcher], bits: Rows) -> dict[int, GrammarFailed]:
    """The errors of those that have no mask. Rows in the same state get the same one at once."""
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
