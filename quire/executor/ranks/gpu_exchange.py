"""Chooses how ranks on GPUs exchange their parts: through each other's memory if every GPU can read
that of every other, else through NCCL. All ranks choose the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from quire.errors import NotSupported
from quire.executor.ranks import nccl
from quire.executor.ranks.gloo import GlooExchange
from quire.executor.ranks.nccl import NcclExchange
from quire.executor.ranks.peers import PeerExchange
from quire.ranks.shares import OPTION, RankShare


def gpu_exchange(
    share: RankShare, meeting: Path, half_bytes: int, begun: Callable[[int], None]
) -> PeerExchange | NcclExchange:
    """One rank's end, on its current GPU. At most `half_bytes` are exchanged at once."""
    on_host = GlooExchange(share, meeting)
    far = far_gpu(torch.cuda.current_device(), share.size)
    # The answers of all ranks, so that all choose the same way.
    found = [int(one) for one in on_host.gather(torch.tensor([-1 if far is None else far]))]
    pairs = [(rank, other) for rank, other in enumerate(found) if other >= 0]
    if not pairs:
        return PeerExchange(share, meeting, on_host, half_bytes, begun)
    if not nccl.is_there():
        own, other = pairs[0]
        raise NotSupported(
            f"{OPTION}: GPU {own} cannot read the memory of GPU {other}, and this torch has no "
            "NCCL to go around that. Choose GPUs that can with CUDA_VISIBLE_DEVICES, or run "
            "replicas of the whole model: data_parallel_size."
        )
    return NcclExchange(share, meeting, on_host, begun)


def far_gpu(own: int, size: int) -> int | None:
    """The first GPU of another rank whose memory this GPU cannot read."""
    others = [i for i in range(min(size, torch.cuda.device_count())) if i != own]
    far = (i for i in others if not torch.cuda.can_device_access_peer(own, i))
    return next(far, None)
