"""Loads the weights of a model without dequantising those that are quantised, for products on a
GPU."""

from __future__ import annotations

import torch
from torch import Tensor

from quire.ranks.shares import ALONE, RankShare
from quire.spec import ModelSpec
from quire.weights.cuts import Piece
from quire.weights.load import Pieces, dummy, fill_all
from quire.weights.names import weights_of
from quire.weights.parts import Weight
from quire.weights.quantised.kept import Products, random_matrix, read_kept, stack
from quire.weights.quantised.layout import Quantisation
from quire.weights.quantised.unpack import QuantisedMatrix
from quire.weights.source import ModelFiles


def load_kept_weights(
    files: ModelFiles,
    spec: ModelSpec,
    *,
    dtype: torch.dtype,
    device: torch.device,
    products: Products,
    share: RankShare = ALONE,
) -> dict[str, Tensor | QuantisedMatrix]:
    """The weights of a model, where quantised ones stay quantised if there are products for
    them."""
    weights: dict[str, Tensor | QuantisedMatrix] = {}
    parts: dict[str, list[QuantisedMatrix | None]] = {}

    def fill(weight: Weight, pieces: Pieces) -> None:
        sources = [piece.source for piece in pieces.all]
        if not pieces.has_zeros and products.take(weight, sources):
            found: list[QuantisedMatrix | None] = [None] * len(sources)
            parts[weight.name] = found
            places = {piece.first: i for i, piece in enumerate(pieces.all)}

            def read(piece: Piece) -> None:
                found[places[piece.first]] = read_kept(piece, device)

            pieces.start(read)
        else:
            weights[weight.name] = pieces.fill_plain(weight, dtype, device)

    fill_all(files, spec, dtype, device, fill, share=share, kept=products.take)
    for name, found in parts.items():
        weights[name] = stack([part for part in found if part is not None], dtype)
        found.clear()
    return weights


def dummy_kept_weights(
    spec: ModelSpec,
    said: Quantisation,
    *,
    dtype: torch.dtype,
    device: torch.device,
    products: Products,
    seed: int = 0,
) -> dict[str, Tensor | QuantisedMatrix]:
    """Random weights with the layouts that a config names."""
    generator = torch.Generator(device=device).manual_seed(seed)
    weights: dict[str, Tensor | QuantisedMatrix] = {}
    for weight in weights_of(spec):
        made = random_matrix(weight, said, device, generator, products)
        weights[weight.name] = dummy(weight, dtype, device, generator) if made is None else made
    return weights
