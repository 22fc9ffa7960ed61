"""Beginnings that sequences of a pass share, read once for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from quire.step import PrefixGroup

Longs = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """Sequences (numbers within the batch) whose tables all begin with `blocks` [full, count], in
    the groups of layers that see everything."""

    blocks: Tensor
    members: Tensor


def prefixes_of(
    groups: Sequence[PrefixGroup],
    rows: Longs,
    num_prefill: int,
    num_full: int,
    device: torch.device,
) -> tuple[SharedPrefix, ...]:
    """The groups with their members as sequences of this batch; rows that rest are left out."""
    number = {row: num_prefill + i for i, row in enumerate(rows[num_prefill:].tolist())}
    prefixes = []
    for group in groups:
        members = [number[row] for row in group.rows.tolist() if row in number]
        if len(members) > 1:
            blocks = torch.from_numpy(group.blocks).to(device, torch.int64).view(num_full, -1)
            prefixes.append(SharedPrefix(blocks, torch.tensor(members, device=device)))
    return tuple(prefixes)
