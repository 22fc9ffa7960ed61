"""A decoder whose matrices are in fp8, with norms and gates that round."""

from __future__ import annotations

from dataclasses import replace

from quire.layers.fp8 import RoundingMLP, RoundingNorm, takes_fp8
from quire.layers.norm import RMSNorm
from quire.models.decoder import Decoder, Layer


def round_early(model: Decoder) -> None:
    """Let whatever stands before a product in fp8 hand its rows on rounded."""
    # The norm after a layer stands before the next one's first product.
    following = [layer.attention.qkv for layer in model.layers[1:]]
    layers = []
    for i, layer in enumerate(model.layers):
        next_norm = layer.next_norm
        if i < len(following) and takes_fp8(following[i]):
            next_norm = RoundingNorm(next_norm)
        layers.append(replace(_rounding(layer), next_norm=next_norm))
    if takes_fp8(model.layers[0].attention.qkv):
        model.first_norm = RoundingNorm(model.first_norm)
    model.layers = tuple(layers)


def _rounding(layer: Layer) -> Layer:
    mlp, norm = layer.mlp, layer.mlp_norm
    before: RMSNorm = RoundingNorm(norm) if takes_fp8(mlp.gate_up) else norm
    return replace(layer, mlp_norm=before, mlp=RoundingMLP(mlp) if takes_fp8(mlp.down) else mlp)
