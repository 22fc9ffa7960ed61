"""MaskFiller: the masks of many rows, in threads, while the device works.

llguidance fills all rows of a step in one call without Python's lock, so the engine loses no time
to it. Its fuel bounds the work for a mask, but not in every case (limits.py). When a call took
longer than its rows may, the next one times every row by itself, and a row that goes beyond its
limit ends with its own error.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from quire.base.boundary import for_row
from quire.errors import GrammarFailed, QuireError
from quire.grammar.limits import GrammarLimits
from quire.grammar.matcher import GrammarMatcher
from quire.grammar.regular import RegularGrammar, RegularMatcher
from quire.grammar.vocabulary import check_mask

if TYPE_CHECKING:
    from llguidance import LLExecutor

# Beyond this, more threads wait for memory rather than compute.
_MAX_THREADS = 16

# So few tokens are taken by this thread before others have woken up.
_FEW = 8

_FOLLOWED = "its grammar was followed"

Rows = npt.NDArray[np.uint32]
Matcher = GrammarMatcher | RegularMatcher


def mask_threads() -> int:
    """Threads for masks: one core stays with the engine."""
    has_affinity = hasattr(os, "sched_getaffinity")  # Linux alone
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return max(1, min(_MAX_THREADS, cores - 1))


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
        return self._aside.submit(self.fill, matchers, bits)

    def fill(self, matchers: Sequence[Matcher], bits: Rows) -> Mapping[int, GrammarFailed]:
        """Fill bits[i] for matchers[i]; the errors of the rows that have no mask, by index.

        bits is [rows, words] with at least as many rows as matchers, of any content. The mask of a
        row with an error is all zeros. A matcher may not stand in the list twice.
        """
        if bits.dtype != np.uint32 or not bits.flags.c_contiguous or len(bits) < len(matchers):
            raise TypeError("masks are a contiguous array of uint32 with a row for each matcher")
        failed = {i: m.error for i, m in enumerate(matchers) if m.error is not None}
        live = [i for i in range(len(matchers)) if i not in failed]
        regular = {i: m for i in live if isinstance(m := matchers[i], RegularMatcher)}
        others = {i: m for i in live if isinstance(m := matchers[i], GrammarMatcher)}
        for grammar, count in Counter(m.grammar for m in others.values()).items():
            grammar.target(bits[0])
            grammar.count_fills(count)
        if self._one_by_one:
            failed |= self._fill_each(others, bits)
        else:
            self._fill_together(others, bits)
        for i, matcher in others.items():
            if i not in failed and matcher.ll.is_error():
                try:
                    matcher.settle(bits[i])
                except GrammarFailed as error:
                    failed[i] = error
        _leave_known(others, bits)
        failed |= _fill_regular(regular, bits)
        for i in failed:
            bits[i] = 0
        return failed

    def accept(self, matchers: Sequence[Matcher], tokens: Sequence[int]) -> list[bool | QuireError]:
        """Have each matcher go on with its token; says which of them could, or what was raised for
        one of them. A matcher may not stand in the list twice."""
        some = [i for i, m in enumerate(matchers) if isinstance(m, GrammarMatcher)]
        if len(some) < _FEW or any(m.error is not None for m in matchers):
            pairs = zip(matchers, tokens, strict=True)
            return [for_row(_FOLLOWED, m.accept, token) for m, token in pairs]
        others = {i: m for i in some if isinstance(m := matchers[i], GrammarMatcher)}
        order = _by_lexer(others)
        stopped = {i: m.ll.is_stopped() for i, m in others.items()}
        taken = self._started().consume_token_par([(others[i].ll, tokens[i]) for i in order])
        accepted = [
            i in others or for_row(_FOLLOWED, m.accept, tokens[i]) for i, m in enumerate(matchers)
        ]
        for i, was_taken in zip(order, taken, strict=True):
            accepted[i] = for_row(
                _FOLLOWED, others[i].accepted, tokens[i], taken=was_taken, stopped=stopped[i]
            )
        return accepted

    def close(self) -> None:
        self._aside.shutdown(wait=True)

    def _fill_together(self, matchers: Mapping[int, GrammarMatcher], bits: Rows) -> None:
        if not matchers:
            return
        order = _by_lexer(matchers)
        started = time.perf_counter()
        self._started().unsafe_compute_mask_ptr(
            [(matchers[i].ll, i) for i in order], bits.ctypes.data, bits.strides[0], len(bits)
        )
        rounds = -(-len(order) // self.num_threads)
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


def _by_lexer(matchers: Mapping[int, GrammarMatcher]) -> list[int]:
    """Matchers with the same lexer wait for each other: put together, they go to one thread."""
    return sorted(matchers, key=lambda i: matchers[i].lexer)


def _leave_known(matchers: Mapping[int, GrammarMatcher], bits: Rows) -> None:
    """Without ids that have no token."""
    for i, matcher in matchers.items():
        if matcher.grammar.known is not None:
            np.bitwise_and(bits[i], matcher.grammar.known, out=bits[i])


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
