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
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from quire.errors import GrammarFailed
from quire.grammar.limits import GrammarLimits
from quire.grammar.matcher import GrammarMatcher

if TYPE_CHECKING:
    from llguidance import LLExecutor

# Beyond this, more threads wait for memory rather than compute.
_MAX_THREADS = 16

# So few tokens are taken by this thread before others have woken up.
_FEW = 8

Rows = npt.NDArray[np.uint32]


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

    def start(
        self, matchers: Sequence[GrammarMatcher], bits: Rows
    ) -> Future[Mapping[int, GrammarFailed]]:
        """Begin to fill bits[i] for matchers[i], and return at once."""
        return self._aside.submit(self.fill, matchers, bits)

    def fill(self, matchers: Sequence[GrammarMatcher], bits: Rows) -> Mapping[int, GrammarFailed]:
        """Fill bits[i] for matchers[i]; the errors of the rows that have no mask, by index.

        bits is [rows, words] with at least as many rows as matchers, of any content. The mask of a
        row with an error is all zeros. A matcher may not stand in the list twice.
        """
        if bits.dtype != np.uint32 or not bits.flags.c_contiguous or len(bits) < len(matchers):
            raise TypeError("masks are a contiguous array of uint32 with a row for each matcher")
        failed = {i: m.error for i, m in enumerate(matchers) if m.error is not None}
        live = [i for i in range(len(matchers)) if i not in failed]
        for grammar, count in Counter(matchers[i].grammar for i in live).items():
            grammar.target(bits[0])
            grammar.count_fills(count)
        if self._one_by_one:
            failed |= self._fill_each(live, matchers, bits)
        else:
            self._fill_together(live, matchers, bits)
        for i in live:
            if i not in failed and matchers[i].ll.is_error():
                try:
                    matchers[i].settle(bits[i])
                except GrammarFailed as error:
                    failed[i] = error
        _leave_known(matchers, bits)
        for i in failed:
            bits[i] = 0
        return failed

    def accept(self, matchers: Sequence[GrammarMatcher], tokens: Sequence[int]) -> list[bool]:
        """Have each matcher go on with its token; says which of them could. A matcher may not
        stand in the list twice."""
        if len(matchers) < _FEW or any(m.error is not None for m in matchers):
            return [m.accept(token) for m, token in zip(matchers, tokens, strict=True)]
        order = _by_lexer(range(len(matchers)), matchers)
        stopped = [m.ll.is_stopped() for m in matchers]
        taken = self._started().consume_token_par([(matchers[i].ll, tokens[i]) for i in order])
        accepted = [False] * len(matchers)
        for i, was_taken in zip(order, taken, strict=True):
            accepted[i] = matchers[i].accepted(tokens[i], taken=was_taken, stopped=stopped[i])
        return accepted

    def close(self) -> None:
        self._aside.shutdown(wait=True)

    def _fill_together(
        self, live: Sequence[int], matchers: Sequence[GrammarMatcher], bits: Rows
    ) -> None:
        if not live:
            return
        order = _by_lexer(live, matchers)
        started = time.perf_counter()
        self._started().unsafe_compute_mask_ptr(
            [(matchers[i].ll, i) for i in order], bits.ctypes.data, bits.strides[0], len(bits)
        )
        rounds = -(-len(order) // self.num_threads)
        self._one_by_one = time.perf_counter() - started > self._limit * rounds

    def _fill_each(
        self, live: Sequence[int], matchers: Sequence[GrammarMatcher], bits: Rows
    ) -> dict[int, GrammarFailed]:
        """The same row by row, in this thread, each on its own clock: how busy the machine is
        does not count."""
        self._one_by_one = False
        slow: dict[int, GrammarFailed] = {}
        for i in live:
            started = time.thread_time()
            matchers[i].fill_raw(bits[i])
            took = time.thread_time() - started
            if took > self._limit:
                slow[i] = matchers[i].give_up(
                    f"the mask of one token took {took:.2f} s, and at most {self._limit} s are "
                    "given; make it simpler"
                )
        return slow

    def _started(self) -> LLExecutor:
        if self._executor is None:
            from llguidance import LLExecutor

            self._executor = LLExecutor(self.num_threads)
        return self._executor


def _by_lexer(some: Iterable[int], matchers: Sequence[GrammarMatcher]) -> list[int]:
    """Matchers with the same lexer wait for each other: put together, they go to one thread."""
    return sorted(some, key=lambda i: matchers[i].lexer)


def _leave_known(matchers: Sequence[GrammarMatcher], bits: Rows) -> None:
    """Without ids that have no token; the grammars of one model know of the same ones."""
    known = {id(m.grammar.known): m.grammar.known for m in matchers}
    if len(known) <= 1:
        for one in known.values():
            if one is not None:
                np.bitwise_and(bits[: len(matchers)], one, out=bits[: len(matchers)])
        return
    for line, matcher in zip(bits, matchers, strict=False):
        if matcher.grammar.known is not None:
            np.bitwise_and(line, matcher.grammar.known, out=line)
