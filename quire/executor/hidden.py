"""Gathers the hidden states that slices ask for from those of a pass: a few rows of many.

The host computes the indices; `Wanted.of_pass` then needs three ops for any number of slices. Sums
are added token by token in order, so a text has the same bits in any batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from quire.step import Floats, Slice

Longs = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Wanted:
    """`tokens`: indices of tokens whose states are wanted unchanged. `summed`: tokens of sums;
    `lengths` has the tokens of each sum. `slices`: (slice, rows of its answer), in this order."""

    tokens: Longs
    summed: Longs
    lengths: Longs
    slices: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, prefill: Sequence[Slice], query_starts: Longs) -> Wanted | None:
        """What these slices ask for, None if nothing. Slice i begins at token query_starts[i]."""
        asking = [i for i, one in enumerate(prefill) if one.hidden is not None]
        if not asking:
            return None
        plain, summed = [], []
        for i in asking:
            left_out = prefill[i].hidden_from
            first, count = int(query_starts[i]) + left_out, len(prefill[i].token_ids) - left_out
            match prefill[i].hidden:
                case "sum":
                    summed.append((i, first, count))
                case "all":
                    plain.append((i, first, count))
                case kind:
                    plain.append((i, first if kind == "first" else first + count - 1, 1))
        rows = [(i, count) for i, _, count in plain] + [(i, 1) for i, _, _ in summed]
        lengths = np.array([count for _, _, count in summed], np.int64)
        return cls(_ranges(plain), _ranges(summed), lengths, tuple(rows))

    def of_pass(self, hidden: Tensor, tokens: Tensor, summed: Tensor, lengths: Tensor) -> Tensor:
        """The rows of the answer, float32 on the device. The arguments are the fields, there."""
        parts = []
        if len(self.tokens):
            parts.append(hidden.index_select(0, tokens).float())
        if len(self.summed):
            states = hidden.index_select(0, summed).float()
            parts.append(torch.segment_reduce(states, "sum", lengths=lengths, axis=0, unsafe=True))
        return torch.cat(parts)

    def split(self, rows: Floats) -> dict[int, Floats]:
        found, at = {}, 0
        for i, count in self.slices:
            found[i] = rows[at : at + count]
            at += count
        return found


def hidden_states(
    prefill: Sequence[Slice], query_starts: Longs, hidden: Tensor
) -> dict[int, Floats]:
    """The hidden states that slices ask for; waits until the pass is computed."""
    wanted = Wanted.of(prefill, query_starts)
    if wanted is None:
        return {}
    fields = (wanted.tokens, wanted.summed, wanted.lengths)
    on_device = (torch.from_numpy(field).to(hidden.device) for field in fields)
    return wanted.split(wanted.of_pass(hidden, *on_device).cpu().numpy())


def _ranges(parts: Sequence[tuple[int, int, int]]) -> Longs:
    """[(_, 3, 2), (_, 9, 1)] -> 3 4 9"""
    if not parts:
        return np.empty(0, np.int64)
    return np.concatenate([np.arange(first, first + count) for _, first, count in parts])
