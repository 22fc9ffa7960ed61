"""StreamsPlan: several streams through all layers. Knows nothing of torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StreamsPlan:
    """AltUp: `count` streams go through the layers, and only one of them, the `active` one, through
    attention and feed-forward.

    The first stream is a token's embedding, each other one a product of it, scaled to its size.
    Each layer first predicts all streams as sums of them, then computes its branches from the
    active one, and corrects every stream by a multiple of what that gave beyond the prediction.
    The factors of both are products of a router, which reads the active stream through a norm. A
    layer's branch of embeddings reads the active stream, times learned numbers, and is added to all
    streams but the first. Behind the last layer the first stream and products of the others, scaled
    to its size, are averaged.

    Beside attention stands what it reads, plus two products of that in turn, `side` numbers wide
    between them, and normed (LAuReL). Both results are added up, divided by the root of 2."""

    count: int
    active: int
    side: int

    def layer_weights(self, hidden: int) -> int:
        """Weights in the products that a layer has for them."""
        return self.count * (hidden + self.count**2 + self.count) + 2 * self.side * hidden

    def outer_weights(self, hidden: int) -> int:
        """Weights in the products before and behind the layers."""
        return 2 * (self.count - 1) * hidden * hidden
