"""Sums over ranks on CPUs: gloo gathers the parts, each rank adds them up in the same order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from quire.layers.tp import added
from quire.ranks.shares import RankShare

# Longer than any step: the engine's process notices a missing rank and ends all ranks.
PATIENCE = timedelta(days=1)


class GlooExchange:
    """One rank's end. Ranks find each other through the file `meeting`."""

    def __init__(
        self, share: RankShare, meeting: Path, begun: Callable[[int], None] = lambda number: None
    ) -> None:
        """`begun` is called with the number of each exchange before it begins."""
        made: Any = torch.distributed
        options = made.ProcessGroupGloo._Options()
        options._devices = [made.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        options._timeout = PATIENCE
        store = made.FileStore(str(meeting), share.size)
        self._group = made.ProcessGroupGloo(store, share.rank, share.size, options)
        self._size, self._begun, self._number = share.size, begun, 0

    def sum(self, part: Tensor) -> Tensor:
        return added(self.gather(part))

    def gather(self, part: Tensor) -> Sequence[Tensor]:
        self._number += 1
        self._begun(self._number)
        given = part.contiguous()
        found = [torch.empty_like(given) for _ in range(self._size)]
        as_bytes = [one.view(-1).view(torch.uint8) for one in (given, *found)]
        self._group.allgather([as_bytes[1:]], as_bytes[:1]).wait()
        return found
