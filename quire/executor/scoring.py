"""Scores of given tokens: all targets of a pass, together and in pieces of bounded size.

The (position, token) pairs of all slices of a pass are gathered, and their logits are computed in
pieces: never prompt x vocabulary at once, and never a product for three tokens alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from quire.sampling.logprobs import ScoredTokens, log_probabilities, score_tokens
from quire.step import Scores, Slice

# Bytes of logits of a piece. On a CPU allocations above 32 MB get fresh pages each time, and
# touching those costs more than a few more products: the best of 8 .. 128 MB, measured.
CPU_BYTES, CUDA_BYTES = 28 << 20, 64 << 20
Longs = npt.NDArray[np.int64]
ARRAYS = ("positions", "shared_lines", "tokens", "named")  # fields of a Piece that the device needs


@dataclass(frozen=True, slots=True)
class Piece:
    """Targets whose logits are computed together. The first targets have one line of logits each,
    that of `positions`; then come targets that share one of those lines, named by `shared_lines`.
    `places` are the indices of the targets."""

    positions: Longs
    shared_lines: Longs
    tokens: Longs
    named: Longs  # [targets, k], tokens to score beside each
    places: Longs


@dataclass(frozen=True, slots=True)
class ScoredTargets:
    """Targets of a pass that ask for the same scores: tokens[i] after position positions[i]."""

    positions: Longs
    tokens: Longs
    named: Longs
    slices: tuple[tuple[int, int], ...]  # (slice, number of its targets), in order of targets
    num_top: int
    as_asked: bool

    def pieces(self, num_lines: int) -> Iterator[Piece]:
        """The targets in pieces of at most `num_lines`. Positions [3 3 4], tokens [7 8 9] ->
        positions [3 4], shared lines [0], tokens [7 9 8], places [0 2 1]."""
        for at in range(0, len(self.tokens), num_lines):
            positions, first, lines = np.unique(
                self.positions[at : at + num_lines], return_index=True, return_inverse=True
            )
            others = np.setdiff1d(np.arange(len(lines)), first)
            places = at + np.concatenate([first, others])
            shared = lines.reshape(-1)[others]
            yield Piece(positions, shared, self.tokens[places], self.named[places], places)

    def split(self, places: Longs, columns: Sequence[npt.NDArray[Any]]) -> dict[int, Scores]:
        """The scores of all targets by slice, from the joined columns of the pieces: logprobs,
        ranks, ids and logprobs of the tokens beside them."""
        order = np.argsort(places)
        logprobs, ranks, top_ids, top_logprobs = (column[order] for column in columns)
        whole = Scores(
            self.tokens.astype(np.int32),
            logprobs.astype(np.float32, copy=False),
            ranks.astype(np.int32),
            top_ids.astype(np.int32),
            top_logprobs.astype(np.float32, copy=False),
        )
        ends = np.cumsum([count for _, count in self.slices]).tolist()
        return {
            i: whole.part(end - count, end)
            for (i, count), end in zip(self.slices, ends, strict=True)
        }


def targets_of(prefill: Sequence[Slice], query_starts: Longs) -> list[ScoredTargets]:
    """The targets of slices; slice i begins at token query_starts[i]."""
    kinds: dict[tuple[int, bool, int], list[int]] = {}
    for i, piece in enumerate(prefill):
        if (one := piece.targets) is not None:
            num_named = 0 if one.named is None else one.named.shape[1]
            kinds.setdefault((one.num_top, one.as_asked, num_named), []).append(i)
    asked = []
    for (num_top, as_asked, num_named), slices in kinds.items():
        targets = [one for i in slices if (one := prefill[i].targets) is not None]
        counts = [len(one) for one in targets]
        offsets = np.concatenate([one.offsets for one in targets]).astype(np.int64)
        tokens = np.concatenate([one.token_ids for one in targets]).astype(np.int64)
        positions = offsets + query_starts[slices].repeat(counts)
        lines = [one.named for one in targets if one.named is not None]
        named = np.concatenate(lines) if lines else np.empty((len(tokens), num_named), np.int32)
        pairs = tuple(zip(slices, counts, strict=True))
        asked.append(
            ScoredTargets(positions, tokens, named.astype(np.int64), pairs, num_top, as_asked)
        )
    return asked


class Scorer:
    """Scores targets with one model's logits."""

    def __init__(
        self, logits: Callable[[Tensor, Tensor], Tensor], *, num_lines: int, as_logits: bool
    ) -> None:
        """`logits(hidden, positions)` computes at most `num_lines` lines at once. `as_logits`:
        scores are plain logits where the engine's logprobs_mode counts."""
        self._logits, self.num_lines, self._as_logits = logits, num_lines, as_logits

    def score(
        self, prefill: Sequence[Slice], query_starts: Longs, hidden: Tensor
    ) -> dict[int, Scores]:
        scored: dict[int, Scores] = {}
        for asked in targets_of(prefill, query_starts):
            pieces = list(asked.pieces(self.num_lines))
            parts = [self._score(asked, piece, hidden) for piece in pieces]
            columns = [
                torch.cat(column).cpu().numpy()
                for column in zip(*(p.columns() for p in parts), strict=True)
            ]
            scored.update(asked.split(np.concatenate([p.places for p in pieces]), columns))
        return scored

    def _score(self, asked: ScoredTargets, piece: Piece, hidden: Tensor) -> ScoredTokens:
        arrays = {name: torch.from_numpy(getattr(piece, name)).to(hidden.device) for name in ARRAYS}
        return self.piece(asked, hidden, **arrays)

    def piece(
        self,
        asked: ScoredTargets,
        hidden: Tensor,
        *,
        positions: Tensor,
        shared_lines: Tensor,
        tokens: Tensor,
        named: Tensor,
    ) -> ScoredTokens:
        """The scores of one piece, on the device. `named` may be flat."""
        values = self._logits(hidden, positions)
        plain = asked.as_asked and self._as_logits
        values = values.float() if plain else log_probabilities(values)
        named = named.view(len(tokens), asked.named.shape[1])
        return score_tokens(values, shared_lines, tokens, asked.num_top, named)


def num_lines_of(num_bytes: int, vocab_size: int, dtype: torch.dtype) -> int:
    """The number of lines of logits that so many bytes hold, at least 1."""
    return max(1, num_bytes // (vocab_size * dtype.itemsize))
