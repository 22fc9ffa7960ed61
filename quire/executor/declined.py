"""What of a model has no kernel of its own on this device, said when it starts."""

from __future__ import annotations

from quire.backends.ops import Kernels
from quire.spec import ModelSpec


def declined_notes(kernels: Kernels, spec: ModelSpec) -> tuple[str, ...]:
    """A line, or none: parts that plain torch computes are right and not as fast."""
    kinds = dict.fromkeys(spec.layers)
    parts = dict.fromkeys(part for layer in kinds for part in kernels.declines(layer))
    if not parts:
        return ()
    return (f"without kernels of their own here, computed by plain torch: {', '.join(parts)}",)
