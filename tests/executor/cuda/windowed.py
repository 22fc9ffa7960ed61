"""A model whose layers see differently far back."""

from __future__ import annotations

from dataclasses import replace

import torch

from quire.weights.load import dummy_weights
from tests.executor.cuda.test_runner import SPEC

# Two tables that see everything and three with windows, of two kinds.
MANY = replace(SPEC, layers=SPEC.layers[:1] * 5).with_windows(12, None, 30, 12, None)
MANY_WEIGHTS = {
    name: w * 10 if w.dim() == 2 else w
    for name, w in dummy_weights(MANY, dtype=torch.float32, device="cpu").items()
}
