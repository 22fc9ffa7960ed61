"""Ranks as threads of one process, which meet at each sum: what processes must give the bits of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TypeVar

from torch import Tensor

from quire.layers.tp import TensorParallel, added
from quire.ranks.shares import RankShare

Made = TypeVar("Made")
SECONDS = 60.0


class ThreadExchange:
    """One rank's end of a meeting."""

    def __init__(self, rank: int, slots: list[Tensor | None], barrier: Barrier) -> None:
        self._rank, self._slots, self._barrier = rank, slots, barrier
        self.num_calls = 0

    def sum(self, part: Tensor) -> Tensor:
        return added(self.gather(part))

    def gather(self, part: Tensor) -> Sequence[Tensor]:
        self.num_calls += 1
        self._slots[self._rank] = part.clone()
        self._barrier.wait(SECONDS)
        found = [one for one in self._slots if one is not None]
        self._barrier.wait(SECONDS)
        return found


def on_ranks(size: int, work: Callable[[TensorParallel], Made]) -> list[Made]:
    """What each of `size` ranks made of it."""
    slots: list[Tensor | None] = [None] * size
    barrier = Barrier(size)

    def one(rank: int) -> Made:
        try:
            tp = TensorParallel(RankShare(rank, size), ThreadExchange(rank, slots, barrier))
            return work(tp)
        except BaseException:
            barrier.abort()
            raise

    if size == 1:
        return [work(TensorParallel())]
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(one, range(size)))
