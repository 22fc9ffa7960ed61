"""What the CUDA runner asks of its kernels beside those of a model.

A decode step is: `feed` (what the rows in the places feed), the model over `attention`, `draw`,
`score` where logprobs are wanted, `accept`, `walk` where grammars are followed. All of it runs
without the host and at fixed addresses, so it can be captured.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from quire.backends.ops import AttentionStep, StateStep
from quire.executor.cuda.graphs import DecodePlaces, GuessPlaces
from quire.layers.attention import Kind
from quire.request import Ints
from quire.step import PrefixGroup


@dataclass(frozen=True, slots=True)
class Feed:
    """What the rows of a step feed, place by place; see backends/triton/steps.py."""

    token_ids: Tensor
    positions: Tensor
    slots: tuple[Tensor, ...]  # for each group of layers
    rows: Tensor  # -1 for a row that rests
    next_at: Tensor
    attention: dict[Kind, AttentionStep]
    states: dict[int, StateStep] = field(default_factory=dict)  # of groups of layers that keep some


class DeviceOps(Protocol):
    """The kernels of one device, bound to its rows."""

    def list_prefixes(
        self, num_places: int, groups: tuple[PrefixGroup, ...], members: list[Ints]
    ) -> Any:
        """Write the groups, whose members sit in these places, into the work list of a bucket.
        Says which list it is (part of a graph's key); None where there is nothing to share."""

    def feed(self, places: DecodePlaces, prefixes: Any) -> Feed: ...

    def feed_guesses(self, places: GuessPlaces, shortest: int, longest: int, prefixes: Any) -> Feed:
        """What rows that guess feed, line by line; see backends/triton/guess_steps.py."""

    def draw(
        self,
        logits: Tensor,
        rows: Tensor,
        next_at: Tensor,
        *,
        truncated: bool,
        edited: Tensor | None = None,
        ahead: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """A token (int64) per line, drawn as rows[i] (int32; -1: nobody) asks, and whether the
        line's logits failed. `edited` (int32; -1: none) names the lines whose rows have edits,
        which are made first, and which remember what was drawn. `ahead`: rows that draw by masks go
        without them; those that may have drawn another token than within their limits freeze."""

    def draw_beside(
        self, logits: Tensor, rows: Tensor, next_at: Tensor, *, truncated: bool
    ) -> tuple[Tensor, Tensor]:
        """As `draw`, without edits, and on any stream, whatever the others draw meanwhile."""

    def score(
        self,
        logits: Tensor,
        rows: Tensor,
        tokens: Tensor,
        failed: Tensor,
        out: Tensor,
        step: Tensor,
    ) -> None:
        """The entry (drawn_scores.py) of what `draw` drew last from each line, for rows that
        want logprobs of the device, goes to out[step[0], line]."""

    def accept(self, places: DecodePlaces, tokens: Tensor, failed: Tensor) -> None: ...

    def walk(self, edited: Tensor, rows: Tensor, tokens: Tensor, failed: Tensor) -> None:
        """After `accept`: of the lines `edited`, those whose rows the device follows through their
        grammars go on by what they drew."""

    def make_lines(self, first: int, count: int) -> None:
        """The lines of bits of so many states of grammars, from the first on."""

    def accept_guesses(
        self, places: GuessPlaces, fed: Feed, tokens: Tensor, failed: Tensor
    ) -> None: ...

    def copy_blocks(self, cache: Tensor, pairs: Tensor) -> None:
        """pairs [n, 2]: block `to` becomes block `from`."""
