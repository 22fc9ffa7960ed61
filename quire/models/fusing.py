"""Norms and gates of a decoder that hand on rows as the product after them takes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from quire.layers.linear import Linear
from quire.layers.mlp import GatedMLP
from quire.layers.norm import RMSNorm
from quire.models.decoder import Decoder


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

    def before(product: Linear, plain: RMSNorm) -> RMSNorm:
        return norm(plain) if takes(product) else plain

    model.first_norm = before(model.layers[0].attention.qkv, model.first_norm)
    following = [layer.attention.qkv for layer in model.layers[1:]]
    next_norms = [layer.next_norm for layer in model.layers]
    next_norms[:-1] = map(before, following, next_norms[:-1])
    model.layers = tuple(
        replace(
            layer,
            mlp_norm=before(layer.mlp.gate_up, layer.mlp_norm),
            mlp=mlp(layer.mlp) if takes(layer.mlp.down) else layer.mlp,
            next_norm=next_norm,
        )
        for layer, next_norm in zip(model.layers, next_norms, strict=True)
    )
