"""Logprobs of drawn tokens: written on the device with the tokens, and copied to the host.

An entry is [logprob, rank, id, logprob, id, logprob ..] in int32, floats by their bits. There is
one block for all rows; a plan copies the lines and the width that its rows asked for.
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
    """The lines of a block that want logprobs: their lines in the result, and how many likeliest
    tokens each of them wants."""

    name: str
    lines: Ints
    num_top: Ints

    @staticmethod
    def pack(upload: Upload, name: str, num_logprobs: Ints, first: int = 0) -> Asking:
        """`num_logprobs`: of each line, -1 for none. Called before the upload is sent. The first
        line of the block is line `first` of the result."""
        lines = np.flatnonzero(num_logprobs >= 0).astype(np.int32)
        upload.add(f"asking {name}", lines)
        return Asking(name, lines + np.int32(first), num_logprobs[lines])

    def __bool__(self) -> bool:
        return len(self.lines) > 0

    def send(self, host_copies: HostCopies, upload: Upload, entries: Tensor) -> DrawnCopy:
        """Copy entries [K, lines, ENTRY] to the host; they may be overwritten at once."""
        width = 2 + 2 * int(self.num_top.max())
        asked = upload.take(f"asking {self.name}")
        block = entries[:, :, :width].index_select(1, asked)
        return DrawnCopy(host_copies.send(block), self.lines, self.num_top)


@dataclass(frozen=True, slots=True)
class DrawnCopy:
    """Entries [K, lines, 2 + 2 k] of these lines of a result, being copied to the host."""

    host_copy: HostCopy
    lines: Ints
    num_top: Ints

    def read(self, tokens: Ints, counts: Ints, order: Longs | None = None) -> Iterator[DrawnScores]:
        """The scores of real tokens: row i of tokens [rows, K] has counts[i] of them. If rows
        guess, they have several lines, and `order` [rows, K] is the line and step of each token."""
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
