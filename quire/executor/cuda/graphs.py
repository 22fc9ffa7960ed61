"""Whole passes as CUDA graphs, one for each bucket, captured when needed.

A graph reads and writes tensors at fixed addresses; for decode steps these are `DecodePlaces`. The
rows in the places, their lengths and blocks are data, so a graph of 64 places serves 33 to 64 rows;
unused places hold the idle row.
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
    """The sizes of buckets: few graphs, little padding.

    max_rows 300 -> 1 2 4 8 16 32 64 96 .. 256 300; with `least` 64 the same from 64 on
    """
    sizes = [*SMALL_BUCKETS, *range(64, 257, 32), *range(384, max_rows, 128)]
    return (*(size for size in sizes if least <= size < max_rows), max_rows)


def edit_bucket(num_lines: int) -> int:
    """The number of edited lines, rounded up: 1 -> 8, 60 -> 64, 300 -> 512; 0 stays 0."""
    if num_lines == 0:
        return 0
    small = next((size for size in EDIT_BUCKETS if size >= num_lines), 0)
    return small or -(-num_lines // EDIT_BUCKETS[-1]) * EDIT_BUCKETS[-1]


@dataclass(frozen=True, slots=True)
class DecodePlaces:
    """The fixed tensors of one bucket: `rows` [places] int32 has the row in each place; step k
    writes line k of `made` [max_repeat, places] int32; `step` [1] int32 is k. `edited` int32 lists
    the places whose rows have edits, then -1."""

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
    """As DecodePlaces, for rows that guess, with `count` + 1 lines for each place: `made`
    [max_repeat, lines]; `edited` lists lines. `histories` [any, room] int32 has the tokens in which
    a row looks for guesses; the first `lengths` [places] int32 are valid."""

    rows: Tensor
    made: Tensor
    step: Tensor
    edited: Tensor
    histories: Tensor
    lengths: Tensor
    line_rows: Tensor  # [lines] int32: the row of each line

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
    """Everything that decides which kernels a graph runs."""

    # "decode", its halves "forward" and "draw", "guessed", "prompts" or "prompts with media"
    kind: str
    size: int  # places or tokens
    truncated: bool
    scored: bool = False  # a row wants logprobs
    num_edited: int = 0  # places that may have edits
    walks: bool = False  # the device follows a row's grammar
    # decode: the list of shared prefixes, and how rows guess; prompts: how many sequences
    prefixes: Any = None
    adapters: int | None = None  # number of the adapters' kernels; None: no adapter
    ahead: bool = False  # rows with limits go ahead of masks


class Graphs:
    """Runs work a number of times, as a graph if wanted, else eagerly."""

    def __init__(self, *, capture: bool) -> None:
        self._capture = capture
        self._graphs: dict[GraphKey, torch.cuda.CUDAGraph] = {}
        self._pool: Any = None

    def prepare(
        self, key: GraphKey, work: Callable[[], None], rest: Callable[[], None] = lambda: None
    ) -> None:
        """Capture the work if it is new. It first runs once without capturing, so that its kernels
        are compiled and loaded. This must not change anything that matters; `rest` is called before
        it to ensure that."""
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
        """Run the work `repeat` times."""
        graph = self._graphs.get(key)
        again = work if graph is None else graph.replay
        for _ in range(repeat):
            again()

    def close(self) -> None:
        self._graphs.clear()
        self._pool = None
