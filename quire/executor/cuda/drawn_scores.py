"""Logprobs of drawn tokens on their way home: written on the device beside the tokens.

An entry is [logprob, rank, id, logprob, id, logprob ..] in int32, floats by their bits: one block
for all, of which a plan sends the lines and the width that its rows asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from quire.executor.cuda.device_rows import MOST_TOP
from quire.executor.cuda.host_copies import HostCopies, HostCopy
from quire.executor.cuda.upload import Longs, Upload
from quire.request import Ints
from quire.step import DrawnScores, Scores

ENTRY = 2 + 2 * MOST_TOP


@dataclass(frozen=True, slots=True)
class Asking:
    """Those lines of a block that asked: their numbers in the result, and how many likeliest
    tokens each of them wants."""

    name: str
    lines: Ints
    num_top: Ints

    @staticmethod
    def pack(upload: Upload, name: str, num_logprobs: Ints, first: int = 0) -> Asking:
        """Of lines whose rows want so many, -1 for none; before the parcel is sent. The first
        line of the block is line `first` of the result."""
        lines = np.flatnonzero(num_logprobs >= 0).astype(np.int32)
        upload.add(f"asking {name}", lines)
        return Asking(name, lines + np.int32(first), num_logprobs[lines])

    def __bool__(self) -> bool:
        return len(self.lines) > 0

    def send(self, host_copies: HostCopies, upload: Upload, entries: Tensor) -> DrawnLetter:
        """entries [K, lines, ENTRY] of the block; what is sent is a copy."""
        width = 2 + 2 * int(self.num_top.max())
        asked = upload.take(f"asking {self.name}")
        block = entries[:, :, :width].index_select(1, asked)
        return DrawnLetter(host_copies.send(block), self.lines, self.num_top)


@dataclass(frozen=True, slots=True)
class DrawnLetter:
    """Entries [K, lines, 2 + 2 k] of the tokens that these lines of a result drew."""

    host_copy: HostCopy
    lines: Ints
    num_top: Ints

    def read(self, tokens: Ints, counts: Ints, order: Longs | None = None) -> Iterator[DrawnScores]:
        """Of real tokens: tokens [rows, K] of the result, of which a row has counts[i]. Where rows
        guess, lines are not rows: `order` [rows, K] says which of a row's lines, step by step, its
        tokens are from."""
        entries = self.host_copy.read().transpose(1, 0, 2).astype(np.int32, copy=False)
        own, tops = self.lines, self.num_top
        if order is not None:
            each = order.shape[1] // entries.shape[1]
            own, tops = own[::each] // each, tops[::each]
            by_row = entries.reshape(len(own), each, *entries.shape[1:]).swapaxes(1, 2)
            by_row = by_row.reshape(len(own), order.shape[1], -1)
            entries = np.take_along_axis(by_row, order[own][:, :, None], axis=1)
        nth = np.arange(entries.shape[1])
        for num_top in np.unique(tops).tolist():
            mine = np.flatnonzero(tops == num_top)
            real = nth < counts[own[mine]][:, None]
            entry = entries[mine][real]
            lines = np.broadcast_to(own[mine][:, None], real.shape)[real]
            drawn = tokens[own[mine], : len(nth)][real]
            top = entry[:, 2 : 2 + 2 * num_top]
            scores = Scores(
                drawn,
                _floats(entry[:, 0]),
                entry[:, 1].copy(),
                np.ascontiguousarray(top[:, ::2]),
                _floats(top[:, 1::2]),
            )
            yield DrawnScores(lines, scores)


def new_entries(num_steps: int, num_lines: int, device: torch.device) -> Tensor:
    return torch.zeros(num_steps, num_lines, ENTRY, dtype=torch.int32, device=device)


def _floats(bits: Ints) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.ascontiguousarray(bits, np.int32).view(np.float32)
