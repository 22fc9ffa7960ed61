"""Norms of q and k that the kernels which rotate heads do not compute."""

from __future__ import annotations

import torch
from torch import Tensor

from quire.backends.ops import HeadNorms, HeadShape, RowOp
from quire.layer_plan import WholeHeads
from quire.layers.norm import Norm, weighted
from quire.layers.sums import in_halves
from quire.layers.tp import TensorParallel


class NormedHeads:
    """q and k normed head by head, by norms that the kernels which rotate heads do not have."""

    def __init__(self, shape: HeadShape, q_norm: Norm, k_norm: Norm) -> None:
        self.num_heads, self.q_norm, self.k_norm = shape.num_heads, q_norm, k_norm

    def __call__(self, qk: Tensor) -> Tensor:
        q, k = qk[:, : self.num_heads], qk[:, self.num_heads :]
        return torch.cat([self.q_norm(q), self.k_norm(k)], dim=1)


class NormedWidths(NormedHeads):
    """One norm over all heads of q together, and one over all heads of k."""

    def __call__(self, qk: Tensor) -> Tensor:
        q, k = qk[:, : self.num_heads], qk[:, self.num_heads :]
        parts = [(q, self.q_norm(q.flatten(1))), (k, self.k_norm(k.flatten(1)))]
        return torch.cat([normed.view(plain.shape) for plain, normed in parts], dim=1)


class ClippedHeads:
    """Heads whose numbers are limited to -most .. most, behind another op."""

    def __init__(self, behind: RowOp, most: float) -> None:
        self.behind, self.most = behind, most

    def __call__(self, heads: Tensor) -> Tensor:
        return self.behind(heads).clamp(-self.most, self.most)


class DividedNorm:
    """An RMSNorm of rows of which each rank has some numbers: squares and the counts of numbers are
    summed over ranks."""

    def __init__(self, weight: Tensor, eps: float, tp: TensorParallel) -> None:
        self.weight, self.eps, self.tp = weight, eps, tp

    def __call__(self, x: Tensor) -> Tensor:
        wide = x.float()
        counts = wide.new_full((len(wide), 1), wide.shape[1])
        sums = self.tp.all_reduce(torch.cat([in_halves(wide.square()), counts], dim=1))
        scale = torch.rsqrt(sums[:, :1] / sums[:, 1:] + self.eps)
        return weighted(wide * scale, self.weight, x.dtype)


class DividedWidths:
    """As NormedWidths, on ranks that each have some of the heads: squares are summed over ranks."""

    def __init__(
        self, shape: HeadShape, whole: WholeHeads, norms: HeadNorms, tp: TensorParallel
    ) -> None:
        """The weights of `norms` are those of this rank's heads."""
        self.num_heads, self.counts_kv, self.eps = shape.num_heads, whole.counts_kv, norms.eps
        self.weights, self.tp = (norms.q, norms.k), tp
        self.widths = (whole.num_heads * shape.head_dim, whole.num_kv_heads * shape.head_dim)

    def __call__(self, qk: Tensor) -> Tensor:
        parts = qk[:, : self.num_heads].flatten(1), qk[:, self.num_heads :].flatten(1)
        squares = [part.float().square().sum(-1) for part in parts]
        if not self.counts_kv:
            squares[1].zero_()
        sums = self.tp.all_reduce(torch.stack(squares, dim=1))
        made = []
        for i, part in enumerate(parts):
            scale = torch.rsqrt(sums[:, i : i + 1] / self.widths[i] + self.eps)
            made.append(weighted(part.float() * scale, self.weights[i], part.dtype))
        return torch.cat(made, dim=1).view(qk.shape)
