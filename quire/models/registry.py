"""Which model is built for a spec: the decoder that is made from parts, or a module of
Transformers.

A family that decoder.py cannot express gets a file of its own in this room and is chosen here.
"""

from __future__ import annotations

from quire.backends.ops import HeadShape, Kernels
from quire.layers.adapted import AdapterSites
from quire.layers.tp import TensorParallel
from quire.models.decoder import Decoder
from quire.models.decoder import build_model as build_model
from quire.models.fallback.loaded import LoadedModule
from quire.models.model import ModuleModel
from quire.models.weight_parts import Weights
from quire.spec import ModelSpec


def build_any_model(
    spec: ModelSpec,
    weights: Weights | LoadedModule,
    kernels: Kernels,
    shape: HeadShape,
    *,
    max_len: int,
    tp: TensorParallel,
    adapters: AdapterSites | None = None,
) -> Decoder | ModuleModel:
    """Build the model of a spec, or the one that runs a loaded module of Transformers."""
    if isinstance(weights, LoadedModule):
        from quire.models.fallback.build import build_fallback  # this import takes seconds

        return build_fallback(weights, kernels, shape, adapters)
    return build_model(spec, weights, kernels, shape, max_len=max_len, tp=tp, adapters=adapters)
