"""Tokens in chunks: what recurrences compute together."""

from __future__ import annotations

import torch
from torch import Tensor


def in_chunks(tokens: Tensor, num_chunks: int, size: int) -> Tensor:
    """[T, heads, D] -> [heads, chunks, size, D], with zeros behind the last token."""
    count, heads, width = tokens.shape
    out = tokens.new_zeros(heads, num_chunks * size, width)
    out[:, :count] = tokens.transpose(0, 1)
    return out.view(heads, num_chunks, size, width)


def between(reached: Tensor) -> Tensor:
    """reached [..., size, 1], the logs of the decays up to each token of a chunk -> [..., size,
    size]: the decay from token j to token i, 0 where j is later."""
    size = reached.shape[-2]
    steps = torch.ones(size, size, dtype=torch.bool, device=reached.device)
    return (reached - reached.mT).masked_fill_(steps.triu_(1), -torch.inf).exp_()
