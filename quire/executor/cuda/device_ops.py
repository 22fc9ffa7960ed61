"""The kernels that the CUDA runner needs beside those of a model.

A decode step is: `feed` (inputs of the rows in the places), the model with `attention`, `draw`,
`score` if logprobs are wanted, `accept`, and `walk` for grammars. All of it runs without the host
and at fixed addresses, so it can be captured.
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
    """The inputs of a step, place by place; see backends/triton/steps.py."""

    token_ids: Tensor
    positions: Tensor
    slots: tuple[Tensor, ...]  # for each group of layers
    rows: Tensor  # -1 for an idle place
    next_at: Tensor
    attention: dict[Kind, AttentionStep]
    states: dict[int, StateStep] = field(default_factory=dict)  # by group of layers


class DeviceOps(Protocol):
    """The kernels of one device, bound to its rows."""

    def list_prefixes(
        self, num_places: int, groups: tuple[PrefixGroup, ...], members: list[Ints]
    ) -> Any:
        """Write the groups, whose members are in these places, into the work list of a bucket.
        Returns which list it is (part of a graph's key); None if no prefix is shared."""

    def feed(self, places: DecodePlaces, prefixes: Any) -> Feed: ...

    def feed_guesses(self, places: GuessPlaces, shortest: int, longest: int, prefixes: Any) -> Feed:
        """The inputs of rows that guess, line by line; see backends/triton/guess_steps.py."""

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
        """A token (int64) for each line, drawn with the parameters of rows[i] (int32; -1: no row),
        and whether or why the line failed (steps/row_schema.py). `edited` (int32; -1: none): lines
        whose rows have edits; these are applied first, and updated with the drawn token. `ahead`:
        rows with masks draw without masks and limits (top_k ...); a row freezes if with them it
        might have drawn another token."""

    def draw_beside(
        self, logits: Tensor, rows: Tensor, next_at: Tensor, *, truncated: bool
    ) -> tuple[Tensor, Tensor]:
        """As `draw`, without edits, on any stream, also while other tokens are drawn."""

    def score(
        self,
        logits: Tensor,
        rows: Tensor,
        tokens: Tensor,
        failed: Tensor,
        out: Tensor,
        step: Tensor,
    ) -> None:
        """Write the logprob entries (drawn_scores.py) of the tokens that `draw` drew last to
        out[step[0]], for rows that want logprobs from the device."""

    def accept(self, places: DecodePlaces, tokens: Tensor, failed: Tensor) -> None: ...

    def walk(self, edited: Tensor, rows: Tensor, tokens: Tensor, failed: Tensor) -> None:
        """Called after `accept`. Of the lines `edited`, rows whose grammar the device follows go to
        the state after their token."""

    def make_lines(self, first: int, count: int) -> None:
        """Make the masks (lines of bits) of `count` states from `first` on."""

    def accept_guesses(
        self, places: GuessPlaces, fed: Feed, tokens: Tensor, failed: Tensor
    ) -> None: ...

    def copy_blocks(self, cache: Tensor, pairs: Tensor) -> None:
        """pairs [n, 2] of (from, to): copy block `from` to block `to`."""
