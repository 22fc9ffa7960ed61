"""Overlay: rows of encoders that stand in a pass where tokens of media are."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Overlay:
    """Token places[i] of the pass takes rows[i] [n, H] for its embedding.

    `deeper` [layers, n, H] are added to the stream behind the first layers, one behind each."""

    places: Tensor
    rows: Tensor
    deeper: Tensor | None = None

    def write(self, stream: Tensor) -> None:
        """In place of what the embedding gave, which may have been scaled: rows are as they are."""
        stream[self.places] = self.rows.to(stream.dtype)

    def add(self, layer: int, stream: Tensor) -> bool:
        """What belongs behind a layer; whether anything does."""
        if self.deeper is None or layer >= len(self.deeper):
            return False
        stream.index_add_(0, self.places, self.deeper[layer].to(stream.dtype))
        return True


@dataclass(frozen=True, slots=True)
class WholeOverlay(Overlay):
    """The same where a pass has fixed addresses: token i takes rows[i] where `places` [T, 1] is
    True."""

    def write(self, stream: Tensor) -> None:
        stream.copy_(torch.where(self.places, self.rows, stream))
