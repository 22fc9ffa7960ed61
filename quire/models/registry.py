"""Which families there are, and what each is built as.

A family that a ModelSpec describes completely needs no file of its own: it is a line here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from quire.errors import UnsupportedModel
from quire.kernels.ops import HeadShape, Kernels
from quire.models.decoder import Decoder, Weights, build_decoder
from quire.spec import ModelSpec
from quire.tp import TensorParallel

FAMILIES: Mapping[str, Callable[..., Decoder]] = {
    "llama": build_decoder,
    "mistral": build_decoder,
    "qwen2": build_decoder,
    "qwen3": build_decoder,
}


def build_model(
    spec: ModelSpec,
    weights: Weights,
    kernels: Kernels,
    shape: HeadShape,
    *,
    max_len: int,
    tp: TensorParallel,
) -> Decoder:
    """The model of a spec; empties `weights`."""
    build = FAMILIES.get(spec.family)
    if build is None:
        raise UnsupportedModel(
            f"family {spec.family!r} is not known; quire has {', '.join(FAMILIES)}."
        )
    return build(spec, weights, kernels, shape, max_len=max_len, tp=tp)
