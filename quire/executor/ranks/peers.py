"""Sums over ranks on GPUs that can read each other's memory, mapped by torch's symmetric memory.

Tensors in main memory go through gloo. Torch calls its symmetric memory alpha; only this file uses
it, so changes there need changes only here.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from quire.backends.triton.exchange import PeerMemory, new_counts, signal_bytes
from quire.executor.ranks.gloo import GlooExchange
from quire.ranks.shares import RankShare

_SIGNALS_AT = 256  # the buffers begin at a multiple of so many bytes


class PeerExchange:
    """One rank's end, on its current GPU."""

    def __init__(
        self,
        share: RankShare,
        meeting: Path,
        on_host: GlooExchange,
        half_bytes: int,
        begun: Callable[[int], None] = lambda number: None,
    ) -> None:
        """At most `half_bytes` are exchanged at once."""
        self._size, self._begun, self._number = share.size, begun, 0
        self._on_host = on_host
        device = torch.device("cuda", torch.cuda.current_device())
        self._memory, self._mapped = _peer_memory(share, meeting, half_bytes, device)
        torch.cuda.synchronize()
        self._on_host.gather(torch.zeros(1))  # wait until all ranks have zeroed their signals

    def sum(self, part: Tensor) -> Tensor:
        if not part.is_cuda:
            return self._on_host.sum(part)
        self._count()
        given = part.contiguous()
        made = torch.empty_like(given)
        self._memory.exchange(given.view(-1), made.view(-1), adds=True)
        return made

    def gather(self, part: Tensor) -> Sequence[Tensor]:
        if not part.is_cuda:
            return self._on_host.gather(part)
        self._count()
        given = part.contiguous()
        made = given.new_empty(self._size, given.numel())
        self._memory.exchange(given.view(-1), made, adds=False)
        return made.view(self._size, *given.shape).unbind()

    def _count(self) -> None:
        self._number += 1
        self._begun(self._number)


def _peer_memory(
    share: RankShare, meeting: Path, half_bytes: int, device: torch.device
) -> tuple[PeerMemory, Any]:
    """The memory of all ranks, and an object that keeps it mapped."""
    made: Any = torch.distributed
    symmetric: Any = importlib.import_module("torch.distributed._symmetric_memory")
    store = made.PrefixStore("peers", made.FileStore(str(meeting), share.size))
    # Torch finds peers through a process group; gloo is enough, as it only carries addresses.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    made.init_process_group("gloo", store=store, rank=share.rank, world_size=share.size)
    at = -(-signal_bytes(share.size) // _SIGNALS_AT) * _SIGNALS_AT
    half_bytes = -(-half_bytes // _SIGNALS_AT) * _SIGNALS_AT
    own = symmetric.empty(at + 2 * half_bytes, dtype=torch.uint8, device=device)
    own.zero_()
    torch.cuda.synchronize()
    mapped = symmetric.rendezvous(own, made.group.WORLD)
    addresses = [int(one) for one in mapped.buffer_ptrs]
    memory = PeerMemory(
        rank=share.rank,
        size=share.size,
        buffers=torch.tensor([one + at for one in addresses], device=device),
        signals=torch.tensor(addresses, device=device),
        own_signals=own[:at].view(torch.int32),
        counts=new_counts(device),
        half_bytes=half_bytes,
    )
    return memory, (own, mapped)
