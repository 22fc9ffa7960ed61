"""The exchange between GPUs, against a plain sum: of one rank whose peers have written already.

Two processes on one GPU are in tests/ranks/test_gpu_ranks.py."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quire.backends.triton.exchange import PeerMemory, new_counts, signal_bytes
from quire.backends.triton.exchange_kernels import MOST_PROGRAMS, TILE_BYTES
from quire.layers.tp import added

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
HALF = 24 * 1024


class Peers:
    """The memory of `size` ranks, of which one is looked at."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.buffers = [
            torch.zeros(2 * HALF, dtype=torch.uint8, device=DEVICE) for _ in range(size)
        ]
        self.signals = [
            torch.zeros(signal_bytes(size) // 4, dtype=torch.int32, device=DEVICE)
            for _ in range(size)
        ]
        self.memory = PeerMemory(
            rank,
            size,
            torch.tensor([one.data_ptr() for one in self.buffers], device=DEVICE),
            torch.tensor([one.data_ptr() for one in self.signals], device=DEVICE),
            self.signals[rank],
            new_counts(DEVICE),
            HALF,
        )

    def write(self, parts: list[Tensor]) -> None:
        """What the others do in the next exchange, tile by tile: a program that has taken part so
        often writes into that half."""
        for rank, part in enumerate(parts):
            data = part.view(-1).view(torch.uint8)
            for tile, first in enumerate(range(0, len(data), TILE_BYTES)):
                program = tile % MOST_PROGRAMS
                count = int(self.memory.counts[program]) + 1
                if rank != self.rank:
                    piece = data[first : first + TILE_BYTES]
                    at = count % 2 * HALF + first
                    self.buffers[rank][at : at + len(piece)] = piece
                    self.signals[self.rank][program * self.size + rank] = count


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("rank", [0, 2])
def test_parts_are_added_in_the_order_of_ranks(rank: int, dtype: torch.dtype) -> None:
    torch.manual_seed(rank)
    peers = Peers(rank, 3)
    for numel in (5, 5000, 64, 4096):
        parts = [torch.randn(numel, device=DEVICE).to(dtype) for _ in range(3)]
        peers.write(parts)
        made = torch.empty_like(parts[rank])
        peers.memory.exchange(parts[rank], made, adds=True)
        assert torch.equal(made, added(parts))
    # The last exchange is the fourth of the first program, which told so to both others.
    others = [one for place, one in enumerate(peers.signals) if place != rank]
    assert [int(one[rank]) for one in others] == [4, 4]
    assert int(peers.memory.counts[0]) == 4 and int(peers.memory.counts[-1]) == 0


def test_parts_are_joined() -> None:
    peers = Peers(1, 2)
    parts = [torch.randn(3000, device=DEVICE) for _ in range(2)]
    peers.write(parts)
    made = torch.empty(2, 3000, device=DEVICE)
    peers.memory.exchange(parts[1], made, adds=False)
    assert torch.equal(made, torch.stack(parts))


def test_counts_wrap_around() -> None:
    peers = Peers(0, 2)
    peers.memory.counts.fill_(2**31 - 1)
    parts = [torch.randn(10, device=DEVICE) for _ in range(2)]
    peers.buffers[1][: 4 * 10] = parts[1].view(torch.uint8)
    peers.signals[0].fill_(-(2**31))
    made = torch.empty(10, device=DEVICE)
    peers.memory.exchange(parts[0], made, adds=True)
    assert torch.equal(made, added(parts))
    assert int(peers.memory.counts[0]) == -(2**31)
