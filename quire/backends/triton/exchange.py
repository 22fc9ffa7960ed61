"""The exchange of one rank's GPU with those of other ranks; see exchange_kernels.py."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from quire.backends.triton.exchange_kernels import MOST_PROGRAMS, TILE_BYTES, exchange_kernel

SIGNAL_BYTES = 4


@dataclass(frozen=True, slots=True)
class PeerMemory:
    """The memory of every rank, by addresses on this rank's GPU: `buffers` and `signals` int64
    [size] are addresses, `own_signals` int32 is written by the others, `counts` int32
    [MOST_PROGRAMS] is this rank's alone. Signals and counts begin as zeros, and no rank may begin
    before all are."""

    rank: int
    size: int
    buffers: Tensor
    signals: Tensor
    own_signals: Tensor
    counts: Tensor
    half_bytes: int  # size of one of the two halves of a buffer

    def exchange(self, given: Tensor, made: Tensor, *, adds: bool) -> None:
        """Sum or join flat parts, in as many exchanges as they need to fit."""
        most = self.half_bytes // given.element_size()
        for first in range(0, given.numel(), most):
            piece = given[first : first + most]
            into = made[first : first + most] if adds else made[:, first : first + most]
            whole = adds or len(piece) == len(given)
            out = into if whole else made.new_empty(self.size, len(piece))
            self._run(piece, out, adds)
            if not whole:
                into.copy_(out)

    def _run(self, given: Tensor, made: Tensor, adds: bool) -> None:
        tile = TILE_BYTES // given.element_size()
        exchange_kernel[(min(triton.cdiv(given.numel(), tile), MOST_PROGRAMS),)](
            given,
            made,
            self.buffers,
            self.signals,
            self.own_signals,
            self.counts,
            given.numel(),
            self.half_bytes // given.element_size(),
            RANK=self.rank,
            SIZE=self.size,
            TILE=tile,
            PROGRAMS=MOST_PROGRAMS,
            ADDS=adds,
            num_warps=8,
        )


def signal_bytes(size: int) -> int:
    """Bytes of the signals of all programs of all ranks."""
    return MOST_PROGRAMS * size * SIGNAL_BYTES


def new_counts(device: torch.device) -> Tensor:
    return torch.zeros(MOST_PROGRAMS, dtype=torch.int32, device=device)
