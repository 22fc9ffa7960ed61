"""Overlay: rows of media encoders that replace the embeddings of media tokens in a pass."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Overlay:
    """Token places[i] of the pass has rows[i] (of [n, H]) as its embedding.

    `deeper` [layers, n, H] is added to the residual stream: deeper[i] after layer i."""

    places: Tensor
    rows: Tensor
    deeper: Tensor | None = None

    def write(self, stream: Tensor) -> None:
        """Overwrite the embeddings. Those may have been scaled; the encoder's rows are not."""
        stream[self.places] = self.rows.to(stream.dtype)

    def replaced(self, token_ids: Tensor, by: int) -> Tensor:
        """The ids [T], with another one where rows are written."""
        return token_ids.index_fill(0, self.places, by)

    def add(self, layer: int, stream: Tensor) -> bool:
        """Add the rows that belong after this layer. Returns whether there were any."""
        if self.deeper is None or layer >= len(self.deeper):
            return False
        stream.index_add_(0, self.places, self.deeper[layer].to(stream.dtype))
        return True


@dataclass(frozen=True, slots=True)
class WholeOverlay(Overlay):
    """An Overlay for passes with fixed addresses (CUDA graphs): rows has a row for every token, and
    token i takes rows[i] where `places` [T, 1] is True."""

    def write(self, stream: Tensor) -> None:
        stream.copy_(torch.where(self.places, self.rows, stream))

    def replaced(self, token_ids: Tensor, by: int) -> Tensor:
        return token_ids.masked_fill(self.places[:, 0], by)
