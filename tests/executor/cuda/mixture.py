"""A tiny mixture of experts, for every executor."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from quire.layer_plan import ExpertsPlan, MlpPlan
from quire.weights.load import dummy_weights
from tests.executor.cuda.test_runner import SPEC

EXPERTS = ExpertsPlan(6, 2, MlpPlan(24), renormalise=True)
MIXTURE = replace(SPEC, layers=tuple(replace(layer, mlp=EXPERTS) for layer in SPEC.layers))


def mixture_weights() -> dict[str, Tensor]:
    """So large that experts differ, and routers have their likes."""
    made = dummy_weights(MIXTURE, dtype=torch.float32, device="cpu")
    return {name: weight * 10 if weight.dim() == 2 else weight for name, weight in made.items()}
