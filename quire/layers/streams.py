"""Several streams through all layers (layer_parts/streams.py), [streams, T, H]. Layers hand them on
where others hand on the norm of their one stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.layers.linear import Linear
from quire.layers.norm import Norm
from quire.layers.sums import mean_square

_LEAST_SQUARE = 1e-5


class Spread(Norm):
    """[T, H] -> [streams, T, H]: what comes before the first layer."""

    def __init__(self, products: Sequence[Linear]) -> None:
        self.products = products

    def __call__(self, x: Tensor) -> Tensor:
        size = mean_square(x)
        return torch.stack([x, *(_sized(product(x), size) for product in self.products)])


class Joined(Norm):
    """[streams, T, H] -> [T, H]: what comes behind the last layer, and the norm there."""

    def __init__(self, products: Sequence[Linear], norm: Norm) -> None:
        self.products, self.norm = products, norm

    def __call__(self, x: Tensor) -> Tensor:
        first, *others = x.unbind()
        size, total = mean_square(first), first.clone()
        for product, other in zip(self.products, others, strict=True):
            total += _sized(product(other), size)
        return self.norm(total.div_(len(x)))


def _sized(x: Tensor, square: Tensor) -> Tensor:
    """Rows scaled to a mean square [T, 1]."""
    factor = (square / mean_square(x).clamp_(min=_LEAST_SQUARE)).sqrt_()
    return x.mul_(factor.to(x.dtype))


@dataclass(frozen=True, slots=True)
class Side:
    """Stands beside attention: what it reads, plus two products of that, normed."""

    narrow: Linear
    wide: Linear
    norm: Norm

    def __call__(self, x: Tensor) -> Tensor:
        return self.norm(self.wide(self.narrow(x))).add_(x)


@dataclass(frozen=True, slots=True)
class Streams:
    """Predicts and corrects a layer's streams. Weights of products are float32. `scale`: [H]."""

    active: int
    router_norm: Norm
    router: Linear
    predicting: Linear
    correcting: Linear
    scale: Tensor

    def predicted(self, x: Tensor) -> Tensor:
        """[streams, T, H] -> the same, in new memory."""
        count, made = len(x), x.clone()
        factors = self.predicting(self._routed(x[self.active])).to(x.dtype)
        of_each = factors.view(-1, count, count).permute(2, 1, 0).unsqueeze(-1)
        for stream, factor in zip(x, of_each, strict=True):
            made.addcmul_(factor, stream)
        return made

    def correct(self, x: Tensor, made: Tensor) -> None:
        """Correct predicted streams by what the layer has made of the active one [T, H]."""
        factors = self.correcting(self._routed(made)).add_(1).to(x.dtype)
        x.addcmul_(factors.T.unsqueeze(-1), made - x[self.active])

    def read(self, x: Tensor) -> Tensor:
        """The active stream as the branch of embeddings reads it [T, H]."""
        return x[self.active] * self.scale

    def _routed(self, x: Tensor) -> Tensor:
        return self.router(self.router_norm(x).float() / x.shape[1]).tanh_()
