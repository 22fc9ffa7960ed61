"""Which model is built for a spec: one decoder, from parts, for all families so far, or a module
of Transformers.

A family that decoder.py cannot be gets a file of its own in this room and is chosen here.
"""

from __future__ import annotations

from quire.backends.ops import HeadShape, Kernels
from quire.errors import UnsupportedModel
from quire.families.registry import family_named
from quire.layers.adapted import AdapterSites
from quire.layers.tp import TensorParallel
from quire.models.decoder import Decoder, build_decoder
from quire.models.fallback.loaded import LoadedModule
from quire.models.model import ModuleModel
from quire.models.parts import Weights
from quire.spec import ModelSpec


def build_model(
    spec: ModelSpec,
    weights: Weights,
    kernels: Kernels,
    shape: HeadShape,
    *,
    max_len: int,
    tp: TensorParallel,
    adapters: AdapterSites | None = None,
) -> Decoder:
    """The model of a spec; empties `weights`. UnsupportedModel for a family that is not known."""
    family_named(spec.family)
    _check_heads(spec)
    return build_decoder(spec, weights, kernels, shape, max_len=max_len, tp=tp, adapters=adapters)


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
    """The model of a spec, or the one that Transformers computes."""
    if isinstance(weights, LoadedModule):
        from quire.models.fallback.build import build_fallback  # Transformers, which takes seconds

        return build_fallback(weights, kernels, shape, adapters)
    return build_model(spec, weights, kernels, shape, max_len=max_len, tp=tp, adapters=adapters)


def _check_heads(spec: ModelSpec) -> None:
    """Attention is planned once for all layers, so they have the same heads."""
    kinds = {
        (
            *(one.num_heads, one.num_kv_heads, one.head_dim, one.scale, one.softcap, one.sinks),
            one.kv_tensors,
        )
        for one in (layer.attention for layer in spec.layers)
    }
    if len(kinds) > 1:
        raise UnsupportedModel(
            f"layers with {len(kinds)} kinds of heads (heads, KV heads, head_dim, scale, softcap, "
            f"sinks, numbers kept for each): {sorted(kinds, key=str)}; quire has models whose "
            "layers share one."
        )
