"""Notes at the start about parts of a model that have no kernel on this device."""

from __future__ import annotations

from quire.backends.ops import Kernels
from quire.layer_plan import mlps_of
from quire.spec import ModelSpec


def declined_notes(kernels: Kernels, spec: ModelSpec) -> tuple[str, ...]:
    """One note, or none: parts that plain torch computes are correct but slower."""
    kinds = dict.fromkeys(spec.layers)
    parts = dict.fromkeys(part for layer in kinds for part in kernels.declines(layer))
    if any(mlp.sparse is not None for layer in kinds for mlp in mlps_of(layer)):
        parts["gates with a cutoff"] = None
    if spec.streams is not None:
        parts["several streams"] = None
    if not parts:
        return ()
    return (f"without kernels of their own here, computed by plain torch: {', '.join(parts)}",)
