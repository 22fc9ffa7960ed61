"""Beams on the GPU: tokens that the host chose go down, candidates come home."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from quire.executor.cuda.device_rows import Column, DeviceColumns
from quire.executor.cuda.host_copies import HostCopies, HostCopy
from quire.executor.cuda.upload import Upload
from quire.request import Ints
from quire.sampling.candidates import candidates
from quire.step import Candidates, StepPlan
from quire.steps.handles import Handles


@dataclass(frozen=True, slots=True)
class CandidateLetter:
    """Candidates on their way home."""

    lines: Ints
    tokens: HostCopy
    logprobs: HostCopy

    def read(self) -> Candidates:
        tokens = self.tokens.read().astype(np.int32, copy=False)
        return Candidates(self.lines, tokens, self.logprobs.read().astype(np.float32, copy=False))


class CudaBeams:
    """What a plan says of beams, done beside its pass."""

    def __init__(self, columns: DeviceColumns, host_copies: HostCopies, handles: Handles) -> None:
        self._columns, self._host_copies, self._handles = columns, host_copies, handles

    def pack(self, plan: StepPlan, upload: Upload) -> None:
        """Before the parcel is sent."""
        decode, chosen = plan.decode, plan.chosen
        place = np.flatnonzero(np.isin(decode.rows, chosen.rows))  # chosen follow their order
        upload.add("chosen rows", chosen.rows)
        upload.add("chosen", np.stack([chosen.tokens, decode.positions[place]]))
        upload.add("searched lines", self._lines(plan))

    def choose(self, plan: StepPlan, upload: Upload) -> None:
        """After the plan's changes: the rows go on from the tokens the host chose."""
        if not len(plan.chosen.rows):
            return
        rows, chosen = upload.take("chosen rows"), upload.take("chosen").view(2, -1)
        self._columns.ints[Column.LAST_TOKEN].index_copy_(0, rows, chosen[0])
        self._columns.ints[Column.POSITION].index_copy_(0, rows, chosen[1])

    def rank(self, plan: StepPlan, upload: Upload, logits: Tensor) -> CandidateLetter | None:
        """The candidates of the searched rows, from the logits of all that draw."""
        lines = self._lines(plan)
        if not len(lines):
            return None
        some = logits.index_select(0, upload.take("searched lines"))
        rows = plan.sampled_rows()[lines]
        count = plan.num_candidates
        some = some[:, : self._columns.vocab_size]
        tokens, logprobs = candidates(some, rows, plan.masks, count, self._handles)
        sent = self._host_copies.send(tokens.to(torch.int32)), self._host_copies.send(logprobs)
        return CandidateLetter(lines, *sent)

    @staticmethod
    def _lines(plan: StepPlan) -> Ints:
        """Which of the rows that draw are searched."""
        drawing = np.isin(plan.sampled_rows(), plan.searched)
        return np.flatnonzero(drawing).astype(np.int32)
