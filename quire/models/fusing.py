"""Norms and gates of a decoder that hand on rows as the product after them takes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from quire.layers.linear import Linear
from quire.layers.mlp import GatedMLP
from quire.layers.norm import Norm, RMSNorm
from quire.models.decoder import Decoder
from quire.models.layers import Mlp, PlainLayer


def fuse(
    model: Decoder,
    *,
    takes: Callable[[Linear], bool],
    norm: Callable[[RMSNorm], RMSNorm],
    mlp: Callable[[GatedMLP], GatedMLP],
) -> None:
    """Put `norm` and `mlp` in place of what stands before a product that `takes` their results.

    The norm after the last layer stays: its rows are chosen from before the next product.
    """

    layers = [one for one in model.layers if isinstance(one, PlainLayer)]
    if len(layers) < len(model.layers):
        return

    def before(product: Linear, plain: Norm) -> Norm:
        return norm(plain) if isinstance(plain, RMSNorm) and takes(product) else plain

    def gated(plain: Mlp) -> Mlp:
        return mlp(plain) if isinstance(plain, GatedMLP) and takes(plain.down) else plain

    model.first_norm = before(layers[0].attention.qkv, model.first_norm)
    following = [layer.attention.qkv for layer in layers[1:]]
    next_norms = [layer.next_norm for layer in layers]
    next_norms[:-1] = map(before, following, next_norms[:-1])
    model.layers = tuple(
        replace(
            layer,
            mlp_norm=before(layer.mlp.products[0], layer.mlp_norm),
            mlp=gated(layer.mlp),
            next_norm=next_norm,
        )
        for layer, next_norm in zip(layers, next_norms, strict=True)
    )
