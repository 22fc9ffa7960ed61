"""Prefixes that several sequences of a pass share, so that attention reads their KV only once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from quire.layers.kv_groups import BlockTables
from quire.step import PrefixGroup

Longs = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """Sequences (`members`, their numbers within the batch) whose block tables begin with the same
    `blocks` [full, count]: a row for each block table without a window."""

    blocks: Tensor
    members: Tensor


def prefixes_of(
    groups: Sequence[PrefixGroup],
    rows: Longs,
    num_prefill: int,
    seen: BlockTables,
    device: torch.device,
) -> tuple[SharedPrefix, ...]:
    """The plan's groups, with rows replaced by sequence numbers of this batch, and blocks as the
    tables see them. Rows that this batch does not decode are left out, and so are groups with fewer
    than two members left."""
    number = {row: num_prefill + i for i, row in enumerate(rows[num_prefill:].tolist())}
    prefixes = []
    for group in groups:
        members = [number[row] for row in group.rows.tolist() if row in number]
        if len(members) > 1:
            blocks = torch.from_numpy(seen.seen(group.blocks, full=True)).to(device, torch.int64)
            in_tables = blocks.view(seen.num_full, -1)
            prefixes.append(SharedPrefix(in_tables, torch.tensor(members, device=device)))
    return tuple(prefixes)
