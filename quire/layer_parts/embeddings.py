"""Positions as waves, and embeddings of tokens for single layers. Knows nothing of torch."""

from __future__ import annotations

from dataclasses import dataclass

from quire.layer_parts.norm import NormPlan


@dataclass(frozen=True, slots=True)
class Waves:
    """To the embedding of the token at position p, of H numbers, the sines and then the cosines of
    (`offset` + p) * 10000^(-i / (H / 2 - 1)) for i from 0 to H / 2 - 1 are added."""

    offset: int = 0


@dataclass(frozen=True, slots=True)
class LayerEmbeddingsPlan:
    """Embeddings for each layer with an EmbeddingBranchPlan, made of every token at the beginning:
    its row of a second table, times the root of `width`, plus a product of its first embedding,
    divided by the root of the hidden size and normed; and this divided by the root of 2. The table
    and the product make those of all layers, one behind the other. Tokens that the table does not
    have read row 0."""

    count: int  # rows of the table
    width: int  # of one layer's embedding
    norm: NormPlan
    of_media: int = 0  # the token whose row tokens have that an encoder's rows stand for
