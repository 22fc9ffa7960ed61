"""Which model is built for a spec: one decoder, from parts, for all families so far.

A family that decoder.py cannot be gets a file of its own in this room and is chosen here.
"""

from __future__ import annotations

from quire.backends.ops import HeadShape, Kernels
from quire.families.registry import family_named
from quire.layers.tp import TensorParallel
from quire.models.decoder import Decoder, Weights, build_decoder
from quire.spec import ModelSpec


def build_model(
    spec: ModelSpec,
    weights: Weights,
    kernels: Kernels,
    shape: HeadShape,
    *,
    max_len: int,
    tp: TensorParallel,
) -> Decoder:
    """The model of a spec; empties `weights`. UnsupportedModel for a family that is not known."""
    family_named(spec.family)
    return build_decoder(spec, weights, kernels, shape, max_len=max_len, tp=tp)
