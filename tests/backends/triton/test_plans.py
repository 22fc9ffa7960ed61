"""Models of every kind of plan by the kernels of a GPU, interpreted where there is none."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from quire.executor.cpu.accuracy import hidden_states
from quire.layer_parts.state import ConvolutionPlan, DeltaNetPlan, MambaPlan, StatePlan
from quire.layer_plan import (
    AttentionPlan,
    ExpertsPlan,
    LatentPlan,
    LayerPlan,
    MlpPlan,
    NormPlan,
    QueryGrowth,
    Rope,
)
from quire.layers.tp import TensorParallel
from quire.models.decoder import head_shape
from quire.models.registry import build_model
from quire.spec import LogitsPlan, ModelSpec
from tests.backends.triton.places import DEVICE
from tests.models.plan_oracle import PlanOracle
from tests.models.test_plans import random_weights

NORM = NormPlan(1e-3, one_plus=True)
LOCAL = AttentionPlan(4, 2, 16, 0.2, Rope(100.0, 16), window=5, softcap=2.0, qk_norm=NORM)
GLOBAL = replace(LOCAL, window=None, rope=Rope(9.0, 8))
GATED = MlpPlan(24, "gelu_tanh")
LAYER = NormPlan(1e-3, "layer", bias=True)
PLAIN_MLP = MlpPlan(24, "relu2", gated=False, bias=True)
SIDE = AttentionPlan(4, 1, 16, 0.25, None, qkv_bias=True, o_bias=True, qk_norm=LAYER)
WIDTH = replace(SIDE, rope=Rope(100.0, 16), qk_norm=NORM, qk_norm_over="width")
ROUNDED = NormPlan(1e-3, rounds_last=True)
SUNK = AttentionPlan(4, 2, 24, 0.2, Rope(100.0, 24), window=5, qkv_bias=True, sinks=True)
SUNK_GLOBAL = replace(SUNK, window=None, query_growth=QueryGrowth(0.5, 4))
CLAMPED = ExpertsPlan(
    *(6, 2, MlpPlan(16, "clamped_silu", bias=True), True),
    shared=MlpPlan(16),
    shared_gate=False,
    score="sigmoid",
    router_bias=True,
    choice_bias=True,
    groups=3,
    groups_taken=2,
    factor=1.5,
)
SPECS = {
    "norms around, two ropes, softcaps": ModelSpec(
        *("llama", 60, 32, 64),
        layers=tuple(LayerPlan(one, GATED, NORM, "both") for one in (LOCAL, GLOBAL)),
        norm=NORM,
        tied_embeddings=True,
        embedding_scale=5.7,
        logits=LogitsPlan(0.5, 9.0),
    ),
    "sinks, grown queries, experts with biases and clamped gates": ModelSpec(
        *("llama", 60, 32, 64),
        layers=tuple(LayerPlan(one, CLAMPED, ROUNDED) for one in (SUNK, SUNK_GLOBAL)),
        norm=ROUNDED,
    ),
    "side by side, after": ModelSpec(
        *("llama", 60, 32, 64),
        layers=(
            LayerPlan(SIDE, PLAIN_MLP, LAYER, "parallel", 0.5),
            LayerPlan(WIDTH, PLAIN_MLP, LAYER, "after"),
        ),
        norm=LAYER,
    ),
}
ROWS = LatentPlan(24, 12, 8, 10, NORM, q_rank=20)
LATENT = AttentionPlan(6, 1, 32, 0.25, Rope(100.0, 8), qkv_bias=True, latent=ROWS)
SPECS["latents"] = ModelSpec(
    *("llama", 60, 32, 64), layers=(LayerPlan(LATENT, GATED, NORM),) * 2, norm=NORM
)
STATE = DeltaNetPlan(4, 2, 4, 3, 4, NORM)
MAMBA = MambaPlan(4, 2, 4, 3, 4, NormPlan(1e-3))
STATES: tuple[StatePlan, ...] = STATE, MAMBA, ConvolutionPlan(32, 3, bias=True)
for state in STATES:
    SPECS[type(state).__name__] = ModelSpec(
        *("llama", 60, 32, 64),
        layers=(LayerPlan(GLOBAL, GATED, NORM, state=state), LayerPlan(GLOBAL, GATED, NORM)),
        norm=NORM,
    )
ATTENDING = LayerPlan(GLOBAL, replace(GATED, gate_scale=0.4), NORM, mlp_scale=1.7)
JOINING = LayerPlan(
    *(GLOBAL, None, NORM),
    state=replace(MAMBA, norm_first=True, o_bias=True, factors=(0.3, 1.4, 0.6, 1.8, 2.1)),
    branch_scale=0.6,
    joins_next=True,
)
UNGATED = ExpertsPlan(6, 2, PLAIN_MLP, shared=PLAIN_MLP, shared_gate=False)
SPECS["branches that share a norm, layers of one branch, experts without gates"] = ModelSpec(
    *("llama", 60, 32, 64),
    layers=(JOINING, ATTENDING, LayerPlan(GLOBAL, None, NORM), LayerPlan(GLOBAL, UNGATED, NORM)),
    norm=NORM,
)
BARE = NormPlan(1e-3, learned=False)
TURNED = AttentionPlan(4, 2, 16, 0.25, Rope(100.0, 16), qk_norm=BARE, qk_norm_behind=True)
GROWN = AttentionPlan(4, 2, 16, 0.25, None, query_growth=QueryGrowth(0.5, 4, first=1))
SCORED = ExpertsPlan(6, 2, MlpPlan(16), score="sigmoid", scores_inputs=True)
SCORED = replace(SCORED, shared=MlpPlan(16), shared_gate=False, shared_factor=0.5)
ONE_BY_ONE = ExpertsPlan(6, 2, MlpPlan(16), apart=0.5)
SPECS["norms without weights, experts that read scored inputs or are chosen one by one"] = (
    ModelSpec(
        *("llama", 60, 32, 64),
        layers=(LayerPlan(TURNED, SCORED, BARE), LayerPlan(GROWN, ONE_BY_ONE, ROUNDED)),
        norm=ROUNDED,
    )
)
TEXT = [(7 * i + i * i) % 60 for i in range(11)]


@pytest.mark.parametrize("name", SPECS)
def test_a_plan_is_computed_as_it_says(name: str) -> None:
    from quire.backends.triton.kernels import TritonKernels

    spec, shape = SPECS[name], head_shape(SPECS[name], 8, torch.float32)
    weights = random_weights(spec)
    there = {name: weight.to(DEVICE) for name, weight in weights.items()}
    model = build_model(spec, there, TritonKernels(shape), shape, max_len=64, tp=TensorParallel())
    with torch.inference_mode():
        logits = model.logits(hidden_states(model, spec, TEXT)).cpu()
    expected = PlanOracle(spec, weights).logits(TEXT)
    assert float((logits - expected).abs().max()) < 1e-4 * float(expected.abs().max())
