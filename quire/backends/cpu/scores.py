"""Scores of queries and keys on a CPU, and attention over parts of the keys, to be merged."""

from __future__ import annotations

import torch
from torch import Tensor

from quire.backends.generic import sigmoid, softcapped
from quire.backends.ops import HeadShape


def scores_of(q: Tensor, k: Tensor, shape: HeadShape, mask: Tensor | None) -> Tensor:
    """Scaled products of queries and keys, softcapped if the model does that, and masked."""
    if mask is not None and shape.softcap is None:
        return torch.baddbmm(mask, q, k.transpose(1, 2), alpha=shape.scale)
    scores = softcapped(torch.bmm(q * shape.scale, k.transpose(1, 2)), shape.softcap)
    return scores if mask is None else scores.add_(mask)


def partial(
    q: Tensor, k: Tensor, v: Tensor, shape: HeadShape, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Attention over some of the keys: the result, and the log of its sum of exponentials."""
    scores = scores_of(q, k, shape, mask)
    chances = scores.softmax(-1)
    # The likeliest key contributes exp(0) = 1 to the sum of exponentials.
    return torch.bmm(chances, v), scores.amax(-1) - chances.amax(-1).log_()


def share_beside(weights: Tensor, sinks: Tensor) -> Tensor:
    """The factor of attention over all keys that a sink leaves. `weights`: logs of the sums of
    exponentials, with heads in the last dimension."""
    return sigmoid(weights - sinks)


def merge(sums: Tensor, weights: Tensor, part: Tensor, weight: Tensor) -> None:
    """Merge attention over more keys into sums and weights, in place."""
    total = torch.logaddexp(weights, weight)
    sums *= (weights - total).exp_()[..., None]
    sums += part * (weight - total).exp_()[..., None]
    weights.copy_(total)
