"""Sums over ranks on GPUs that cannot read each other's memory: NCCL gathers the parts, and each
rank adds them up in the same order.

NCCL's own sums are not used: their order, and so their bits, depend on sizes and on how the GPUs
are connected. Tensors in main memory go through gloo. Not yet run on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from quire.executor.ranks.gloo import PATIENCE, GlooExchange
from quire.layers.tp import added
from quire.ranks.shares import RankShare


def is_there() -> bool:
    """Whether this torch was built with NCCL."""
    found: Any = torch.distributed
    return bool(found.is_nccl_available())


class NcclExchange:
    """One rank's end, on its current GPU. Passes that use it are not captured."""

    def __init__(
        self,
        share: RankShare,
        meeting: Path,
        on_host: GlooExchange,
        begun: Callable[[int], None] = lambda number: None,
    ) -> None:
        made: Any = torch.distributed
        self._size, self._begun, self._number = share.size, begun, 0
        self._on_host = on_host
        store = made.PrefixStore("nccl", made.FileStore(str(meeting), share.size))
        options = made.ProcessGroupNCCL.Options()
        options._timeout = PATIENCE
        self._group = made.ProcessGroupNCCL(store, share.rank, share.size, options)
        # The first exchange makes the connections and allocates the memory that they need.
        self.gather(torch.zeros(1, device="cuda"))
        torch.cuda.synchronize()

    def sum(self, part: Tensor) -> Tensor:
        return added(self.gather(part)) if part.is_cuda else self._on_host.sum(part)

    def gather(self, part: Tensor) -> Sequence[Tensor]:
        if not part.is_cuda:
            return self._on_host.gather(part)
        self._number += 1
        self._begun(self._number)
        given = part.contiguous()
        made = given.new_empty(self._size, *given.shape)
        self._group._allgather_base(made.view(-1), given.view(-1)).wait()
        return made.unbind()
