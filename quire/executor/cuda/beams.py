"""Beam search on the GPU: the host sends the tokens that it chose, and gets candidates back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from quire.executor.cuda.device_rows import DeviceColumns
from quire.executor.cuda.host_copies import HostCopies, HostCopy
from quire.executor.cuda.upload import Upload
from quire.request import Ints
from quire.sampling.candidates import candidates
from quire.step import Candidates, StepPlan
from quire.steps.handles import Handles


@dataclass(frozen=True, slots=True)
class CandidateCopy:
    """Candidates that are being copied to the host."""

    lines: Ints
    tokens: HostCopy
    logprobs: HostCopy

    def read(self) -> Candidates:
        tokens = self.tokens.read().astype(np.int32, copy=False)
        return Candidates(self.lines, tokens, self.logprobs.read().astype(np.float32, copy=False))


class CudaBeams:
    """The beam search of a plan."""

    def __init__(self, columns: DeviceColumns, host_copies: HostCopies, handles: Handles) -> None:
        self._columns, self._host_copies, self._handles = columns, host_copies, handles

    def pack(self, plan: StepPlan, upload: Upload) -> None:
        """Called before the upload is sent."""
        decode, chosen = plan.decode, plan.chosen
        if not len(chosen.rows):
            return
        place = np.flatnonzero(np.isin(decode.rows, chosen.rows))  # chosen follow their order
        upload.add("chosen rows", chosen.rows)
        upload.add("chosen", np.stack([chosen.tokens, decode.positions[place]]))

    def searched(self, plan: StepPlan, upload: Upload, name: str, rows: Ints) -> Ints:
        """The lines of a block (it draws for these rows) that are searched. They are added to the
        upload under this name."""
        lines = np.flatnonzero(np.isin(rows, plan.searched)).astype(np.int32)
        upload.add(name, lines)
        return lines

    def choose(self, plan: StepPlan, upload: Upload) -> None:
        """Called after the plan's changes: set the last tokens that the host chose."""
        if not len(plan.chosen.rows):
            return
        self._columns.go_on_from(upload.take("chosen rows"), upload.take("chosen").view(2, -1))

    def rank(
        self, plan: StepPlan, lines: Tensor, rows: Ints, first: Ints, logits: Tensor
    ) -> CandidateCopy:
        """The candidates of some lines of a block, for these rows; `first`: lines in the result."""
        some = logits.index_select(0, lines)[:, : self._columns.vocab_size]
        tokens, logprobs = candidates(some, rows, plan.masks, plan.num_candidates, self._handles)
        sent = self._host_copies.send(tokens.to(torch.int32)), self._host_copies.send(logprobs)
        return CandidateCopy(first, *sent)


def joined_candidates(copies: Sequence[CandidateCopy]) -> Candidates | None:
    """The candidates of all blocks of a plan."""
    if not copies:
        return None
    read = [copy.read() for copy in copies]
    return Candidates(
        np.concatenate([one.lines for one in read]),
        np.concatenate([one.tokens for one in read]),
        np.concatenate([one.logprobs for one in read]),
    )
