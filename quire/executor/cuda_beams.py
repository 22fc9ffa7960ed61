"""Beams on the GPU: tokens that the host chose go down, candidates come home."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from quire.executor.device_rows import Column, DeviceColumns
from quire.executor.outbox import Letter, Outbox
from quire.executor.parcel import Parcel
from quire.handles import Handles
from quire.request import Ints
from quire.sampling.candidates import candidates
from quire.step import Candidates, StepPlan


@dataclass(frozen=True, slots=True)
class CandidateLetter:
    """Candidates on their way home."""

    lines: Ints
    tokens: Letter
    logprobs: Letter

    def read(self) -> Candidates:
        tokens = self.tokens.read().astype(np.int32, copy=False)
        return Candidates(self.lines, tokens, self.logprobs.read().astype(np.float32, copy=False))


class CudaBeams:
    """What a plan says of beams, done beside its pass."""

    def __init__(self, columns: DeviceColumns, outbox: Outbox, handles: Handles) -> None:
        self._columns, self._outbox, self._handles = columns, outbox, handles

    def pack(self, plan: StepPlan, parcel: Parcel) -> None:
        """Before the parcel is sent."""
        decode, chosen = plan.decode, plan.chosen
        place = np.flatnonzero(np.isin(decode.rows, chosen.rows))  # chosen follow their order
        parcel.add("chosen rows", chosen.rows)
        parcel.add("chosen", np.stack([chosen.tokens, decode.positions[place]]))
        parcel.add("searched lines", self._lines(plan))

    def choose(self, plan: StepPlan, parcel: Parcel) -> None:
        """After the plan's changes: the rows go on from the tokens the host chose."""
        if not len(plan.chosen.rows):
            return
        rows, chosen = parcel.take("chosen rows"), parcel.take("chosen").view(2, -1)
        self._columns.ints[Column.LAST_TOKEN].index_copy_(0, rows, chosen[0])
        self._columns.ints[Column.POSITION].index_copy_(0, rows, chosen[1])

    def rank(self, plan: StepPlan, parcel: Parcel, logits: Tensor) -> CandidateLetter | None:
        """The candidates of the searched rows, from the logits of all that draw."""
        lines = self._lines(plan)
        if not len(lines):
            return None
        some = logits.index_select(0, parcel.take("searched lines"))
        rows = plan.sampled_rows()[lines]
        count = plan.num_candidates
        some = some[:, : self._columns.vocab_size]
        tokens, logprobs = candidates(some, rows, plan.masks, count, self._handles)
        sent = self._outbox.send(tokens.to(torch.int32)), self._outbox.send(logprobs)
        return CandidateLetter(lines, *sent)

    @staticmethod
    def _lines(plan: StepPlan) -> Ints:
        """Which of the rows that draw are searched."""
        drawing = np.isin(plan.sampled_rows(), plan.searched)
        return np.flatnonzero(drawing).astype(np.int32)
