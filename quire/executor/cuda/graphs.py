"""Whole passes as CUDA graphs, one per bucket, captured when they are needed.

A graph reads and writes tensors at fixed addresses; for decode steps these are `DecodePlaces`.
Which rows sit in the places, how long they are and where their blocks lie is data, so a graph
of 64 places serves any 33 to 64 rows; in the others sits the row that rests for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quire.backends.capturing import capturing

SMALL_BUCKETS = (1, 2, 4, 8, 16, 32)
EDIT_BUCKETS = (8, 64, 256)


def buckets(max_rows: int, least: int = 1) -> tuple[int, ...]:
    """How many rows graphs are made for: few enough graphs, little padding.

    max_rows 300 -> 1 2 4 8 16 32 64 96 .. 256 300; with `least` 64, of those from 64 on
    """
    sizes = [*SMALL_BUCKETS, *range(64, 257, 32), *range(384, max_rows, 128)]
    return (*(size for size in sizes if least <= size < max_rows), max_rows)


def edit_bucket(num_lines: int) -> int:
    """How many edited lines a graph is made for: 1 -> 8, 60 -> 64, 300 -> 512; 0 stays 0."""
    if num_lines == 0:
        return 0
    small = next((size for size in EDIT_BUCKETS if size >= num_lines), 0)
    return small or -(-num_lines // EDIT_BUCKETS[-1]) * EDIT_BUCKETS[-1]


@dataclass(frozen=True, slots=True)
class DecodePlaces:
    """The fixed tensors of one bucket: `rows` [places] int32 sit there; pass k writes line k of
    `made` [max_repeat, places] int32, and `step` [1] int32 is k. `edited` int32 lists the places
    whose rows have edits, -1 where there are no more."""

    rows: Tensor
    made: Tensor
    step: Tensor
    edited: Tensor

    @staticmethod
    def make(num_places: int, max_repeat: int, resting: int, device: torch.device) -> DecodePlaces:
        return DecodePlaces(
            torch.full((num_places,), resting, dtype=torch.int32, device=device),
            torch.full((max_repeat, num_places), -1, dtype=torch.int32, device=device),
            torch.zeros(1, dtype=torch.int32, device=device),
            torch.full((edit_bucket(num_places),), -1, dtype=torch.int32, device=device),
        )

    @property
    def size(self) -> int:
        return self.rows.shape[0]


@dataclass(frozen=True, slots=True)
class GuessPlaces:
    """The same for rows that guess, with `count` + 1 lines for each place: `made` [max_repeat,
    lines], `edited` lists lines. `histories` [any, room] int32 are the tokens that a row looks
    among, of which the first `lengths` [places] int32 are there."""

    rows: Tensor
    made: Tensor
    step: Tensor
    edited: Tensor
    histories: Tensor
    lengths: Tensor
    line_rows: Tensor  # [lines] int32: the row that each belongs to

    @staticmethod
    def make(
        num_places: int, count: int, max_repeat: int, resting: int, histories: Tensor
    ) -> GuessPlaces:
        device, num_lines = histories.device, num_places * (1 + count)
        rows = torch.full((num_places,), resting, dtype=torch.int32, device=device)
        lines = DecodePlaces.make(num_lines, max_repeat, resting, device)
        lengths = torch.zeros(num_places, dtype=torch.int32, device=device)
        return GuessPlaces(
            rows, lines.made, lines.step, lines.edited, histories, lengths, lines.rows
        )

    @property
    def size(self) -> int:
        return self.rows.shape[0]

    @property
    def num_lines(self) -> int:
        return self.line_rows.shape[0]

    @property
    def count(self) -> int:
        return self.num_lines // self.size - 1


@dataclass(frozen=True, slots=True)
class GraphKey:
    """What a graph was captured for: anything that changes which kernels run."""

    # "decode", its halves "forward" and "draw", "guessed", "prompts" or "prompts with media"
    kind: str
    size: int  # places or tokens
    truncated: bool
    scored: bool = False  # some want logprobs
    num_edited: int = 0  # places that may have edits
    walks: bool = False  # some of these follow grammars without the host
    # decode: the list of shared prefixes, and how rows guess; prompts: how many sequences
    prefixes: Any = None
    adapters: int | None = None  # which kernels add adapters; None: no line has one
    ahead: bool = False  # some go ahead of masks and have limits (doubt_kernels.py)


class Graphs:
    """Runs work as often as asked: captured where that is wanted, else eagerly."""

    def __init__(self, *, capture: bool) -> None:
        self._capture = capture
        self._graphs: dict[GraphKey, torch.cuda.CUDAGraph] = {}
        self._pool: Any = None

    def prepare(
        self, key: GraphKey, work: Callable[[], None], rest: Callable[[], None] = lambda: None
    ) -> None:
        """Capture the work if it is new. It is done for real first, so that its kernels are
        compiled and loaded; whoever calls sees to it that this changes nothing, by what `rest`
        does right before, if need be."""
        if not self._capture or key in self._graphs:
            return
        rest()
        work()
        graph = torch.cuda.CUDAGraph()
        with capturing(graph, self._pool):
            work()
        self._pool = graph.pool()
        self._graphs[key] = graph

    def run(self, key: GraphKey, work: Callable[[], None], repeat: int) -> None:
        """The work, `repeat` times in a row."""
        graph = self._graphs.get(key)
        again = work if graph is None else graph.replay
        for _ in range(repeat):
            again()

    def close(self) -> None:
        self._graphs.clear()
        self._pool = None
