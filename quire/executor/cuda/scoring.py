"""Scores of given tokens on a GPU, without waiting for it.

Targets are sent in the plan's upload, and scores are copied to the host beside the tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from quire.executor.cuda.host_copies import HostCopies, HostCopy
from quire.executor.cuda.upload import Upload
from quire.executor.scoring import ARRAYS, Longs, ScoredTargets, Scorer, targets_of
from quire.step import Scores, Slice


@dataclass(frozen=True, slots=True)
class Packed:
    """Targets whose pieces are in an upload, under these names."""

    asked: ScoredTargets
    names: tuple[str, ...]
    places: Longs


@dataclass(frozen=True, slots=True)
class ScoreCopy:
    """Scores being copied: [targets, 2 + 2 k] in float64, which represents ids and float32 exactly.

    A line is logprob, rank, and ids and logprobs of the k other tokens.
    """

    packed: Packed
    host_copy: HostCopy

    def read(self) -> dict[int, Scores]:
        lines = self.host_copy.read()
        num_top = (lines.shape[1] - 2) // 2
        columns = [lines[:, 0], lines[:, 1], lines[:, 2 : 2 + num_top], lines[:, 2 + num_top :]]
        return self.packed.asked.split(self.packed.places, columns)


class CudaScoring:
    """Uploads the targets of slices, scores them, and copies the scores to the host."""

    def __init__(self, scorer: Scorer, host_copies: HostCopies) -> None:
        self._scorer, self._host_copies = scorer, host_copies

    def pack(self, prefill: Sequence[Slice], query_starts: Longs, upload: Upload) -> list[Packed]:
        """Called before the upload is sent."""
        packed: list[Packed] = []
        for asked in targets_of(prefill, query_starts):
            names: list[str] = []
            pieces = list(asked.pieces(self._scorer.num_lines))
            for piece in pieces:
                names.append(f"scored {len(packed)}.{len(names)}")
                for what in ARRAYS:
                    upload.add(f"{names[-1]} {what}", getattr(piece, what))
            places = np.concatenate([piece.places for piece in pieces])
            packed.append(Packed(asked, tuple(names), places))
        return packed

    def run(self, packed: Iterable[Packed], upload: Upload, hidden: Tensor) -> list[ScoreCopy]:
        """Called after the layers of the pass."""
        copies = []
        for one in packed:
            lines = []
            for name in one.names:
                arrays = {what: upload.take(f"{name} {what}") for what in ARRAYS}
                made = self._scorer.piece(one.asked, hidden, **arrays)
                columns = (c[:, None] if c.dim() == 1 else c for c in made.columns())
                lines.append(torch.cat([column.double() for column in columns], 1))
            copies.append(ScoreCopy(one, self._host_copies.send(torch.cat(lines))))
        return copies
