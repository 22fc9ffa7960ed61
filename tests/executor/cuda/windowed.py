"""Models whose layers see differently far back, and have other heads."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from quire.layer_plan import Rope
from quire.spec import ModelSpec
from quire.weights.load import dummy_weights
from tests.executor.cuda.test_runner import SPEC

# Two tables that see everything and three with windows, of two kinds.
MANY = replace(SPEC, layers=SPEC.layers[:1] * 5).with_windows(12, None, 30, 12, None)

# KV heads and their size: keys of the layers that see everything are half as large as the others',
# so that both are in one place of a block; the layer with window 30 has other heads.
KV_HEADS = ((2, 16), (1, 16), (1, 32), (2, 16), (1, 16))
HEADED = replace(
    MANY,
    layers=tuple(
        replace(
            layer,
            attention=replace(
                layer.attention, num_kv_heads=count, head_dim=size, rope=Rope(10000.0, size)
            ),
        )
        for layer, (count, size) in zip(MANY.layers, KV_HEADS, strict=True)
    ),
)


def large_weights(spec: ModelSpec) -> dict[str, Tensor]:
    """With which tokens depend on all that was read."""
    made = dummy_weights(spec, dtype=torch.float32, device="cpu")
    return {name: w * 10 if w.dim() == 2 else w for name, w in made.items()}


MANY_WEIGHTS, HEADED_WEIGHTS = large_weights(MANY), large_weights(HEADED)
