"""Every field of every plan is computed, on every set of kernels, and none of them does nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from quire.backends.choose import kernels_for, torch_kernels
from quire.backends.ops import Kernels
from quire.errors import UnsupportedModel
from quire.executor.cpu.accuracy import hidden_states
from quire.executor.plain_data import from_json, to_json
from quire.layer_parts.rope import LinearRope
from quire.layer_parts.state import ConvolutionPlan, DeltaNetPlan, MambaPlan
from quire.layer_parts.streams import StreamsPlan
from quire.layer_plan import (
    AttentionPlan,
    EmbeddingBranchPlan,
    ExpertsPlan,
    LatentPlan,
    LayerPlan,
    MlpPlan,
    NormPlan,
    QueryGrowth,
    Rope,
    SparsePlan,
)
from quire.layers.tp import TensorParallel
from quire.models.decoder import Decoder, head_shape
from quire.models.registry import build_model
from quire.spec import (
    LayerEmbeddingsPlan,
    LearnedPositions,
    LogitsPlan,
    ModelSpec,
    Waves,
    for_kernels,
)
from quire.weights.names import weights_of
from tests.backends.reference import ReferenceKernels
from tests.models.plan_oracle import PlanOracle

NORM = NormPlan(1e-3)
GATED = MlpPlan(40)
PLAIN = LayerPlan(AttentionPlan(4, 2, 16, 0.25, Rope(100.0, 16)), GATED, NORM)
SPEC = ModelSpec("llama", 60, 32, 64, (PLAIN,) * 2, NORM)
TEXT = [(7 * i + i * i) % 60 for i in range(23)]

# Another value for every field of a plan, and what it is a field of.
ATTENTION: dict[str, list[Any]] = {
    "num_heads": [6],
    "num_kv_heads": [1, 4],
    "head_dim": [24],
    "scale": [0.1],
    "softcap": [1.5],
    "rope": [
        *(None, Rope(100.0, 8), Rope(9.0, 16), Rope(100.0, 16, LinearRope(3.0))),
        Rope(100.0, 16, turning=3),
    ],
    "window": [5],
    "chunk": [4, 8],
    "qkv_bias": [True],
    "o_bias": [True],
    "query_growth": [QueryGrowth(0.5, 6), QueryGrowth(0.5, 6, first=2)],
    "sinks": [True],
    "output_gate": [True],
    "value_norm": [1e-3],
    "values_are_keys": [True],
    "clip": [0.4],
    "inner_norm": [NORM, NormPlan(1e-3, "layer", bias=True)],
    "qk_norm": [
        NormPlan(1e-3, learned=False),
        NORM,
        NormPlan(1e-3, "layer", bias=True),
        NormPlan(1e-3, one_plus=True),
    ],
}
_NORMED = replace(PLAIN.attention, qk_norm=NORM)
_BEHIND = replace(_NORMED, qk_norm_behind=True)
NORMED = {
    "qk_norm_over": replace(_NORMED, qk_norm_over="width"),
    "qk_norm_over, layer": replace(_NORMED, qk_norm=NormPlan(1e-3, "layer"), qk_norm_over="width"),
    "clip behind norms": replace(_NORMED, qk_norm_over="width", clip=0.4),
    "qk_norm_behind": _BEHIND,
    "qk_norm_behind, a part rotated": replace(_BEHIND, rope=Rope(100.0, 8, LinearRope(3.0))),
}
# Keys and values as one row a token, which is all that an attention has then.
ROWS = LatentPlan(24, 12, 8, 10, NORM)
LATENT: dict[str, list[Any]] = {
    "kv_rank": [16],
    "plain_dims": [6],
    "rope_dims": [4],
    "value_dims": [14],
    "norm": [NormPlan(0.5)],
    "q_rank": [20],
}
BESIDE_ROWS: dict[str, Any] = {"scale": 0.1, "qkv_bias": True, "o_bias": True, "num_heads": 6}
MLP: dict[str, list[Any]] = {
    "width": [48],
    "activation": ["gelu_tanh", "gelu", "relu", "relu2"],
    "gated": [False],
    "bias": [True],
    "gate_scale": [0.3],
    "sparse": [SparsePlan(0.4, 40), SparsePlan(-0.6, 40)],
    "inner_norm": [NormPlan(0.3)],
}
EXPERTS: dict[str, list[Any]] = {
    "count": [7],
    "per_token": [3],
    "expert": [
        *(MlpPlan(24), MlpPlan(16, "gelu"), MlpPlan(16, bias=True)),
        *(MlpPlan(16, "clamped_silu"), MlpPlan(16, "relu2", gated=False)),
    ],
    "renormalise": [True],
    "shared": [MlpPlan(20), MlpPlan(20, "relu2", gated=False, bias=True)],
    "score": ["sigmoid"],
    "router_bias": [True],
    "choice_bias": [True],
    "factor": [1.7],
    "has_factors": [True],
    "router_norm": [NormPlan(0.3)],
    "apart": [0.5, 1.5],
    "scores_inputs": [True],
}
# Fields that mean something beside others alone.
GROUPED = ExpertsPlan(12, 2, MlpPlan(16), groups=4, groups_taken=2)
BESIDE = {
    "groups": GROUPED,
    "groups_taken": replace(GROUPED, groups_taken=1),
    "group_score": replace(GROUPED, group_score="best"),
    "shared_factor": ExpertsPlan(5, 2, MlpPlan(16), shared=MlpPlan(20), shared_factor=0.6),
    "shared_gate": ExpertsPlan(5, 2, MlpPlan(16), shared=MlpPlan(20), shared_gate=False),
}
MIXED = ExpertsPlan(5, 2, MlpPlan(16))
MIXTURE = replace(PLAIN, mlp=MIXED)
LAYER: dict[str, list[Any]] = {
    "norm": [
        NormPlan(0.5),
        NormPlan(1e-3, "layer"),
        NormPlan(1e-3, "layer", bias=True),
        NormPlan(1e-3, rounds_last=True),
        NormPlan(1e-3, learned=False),
        NormPlan(1e-3, "layer", learned=False),
    ],
    "norms": ["after", "both", "parallel", "parallel_two"],
    "branch_scale": [0.3],
    "mlp_scale": [0.3],
    "mlp": [None],
    "is_scaled": [True],
    "beside": [ExpertsPlan(5, 2, MlpPlan(16), has_factors=True, router_norm=NORM)],
}
STATES: dict[str, list[Any]] = {
    "num_heads": [6],
    "num_key_heads": [1],
    "in_turn": [True],
    "most_rate": [2.0],
    "key_dim": [6],
    "value_dim": [5],
    "reach": [1, 3],
    "norm": [NormPlan(0.5), NormPlan(1e-3, one_plus=True)],
}
STATE = DeltaNetPlan(4, 2, 4, 3, 4, NORM)
MAMBAS: dict[str, list[Any]] = {
    "num_heads": [6],
    "num_key_heads": [1],
    "key_dim": [6],
    "value_dim": [5],
    "reach": [1, 3],
    "norm": [NormPlan(0.5), None],
    "bias": [True],
    "o_bias": [True],
    "convolution_bias": [False],
    "least_step": [0.9],
    "norm_first": [True],
    "factors": [(0.3, 1.4, 0.6, 1.8, 2.1)],
}
MAMBA = MambaPlan(4, 2, 4, 3, 4, NORM)
CONVOLUTIONS: dict[str, list[Any]] = {"channels": [20], "reach": [1, 5], "bias": [True]}
CONVOLUTION = ConvolutionPlan(32, 3)
STREAMS: dict[str, list[Any]] = {"count": [2, 4], "active": [2], "side": [7]}
MODEL: dict[str, list[Any]] = {
    "tied_embeddings": [True],
    "embedding_scale": [5.7],
    "embed_norm": [NormPlan(1e-3, learned=False), NORM],
    "learned_positions": [LearnedPositions(40), LearnedPositions(40, 2)],
    "waves": [Waves(), Waves(2)],
    "logits": [LogitsPlan(0.3), LogitsPlan(softcap=9.0), LogitsPlan(bias=True)],
    "norm": [NormPlan(1e-3, "layer", bias=True)],
}


def with_rows(latent: LatentPlan, **others: Any) -> LayerPlan:
    """The plain layer with attention of this kind."""
    size, rope = latent.kv_rank + latent.rope_dims, Rope(100.0, latent.rope_dims)
    given = {"num_heads": 4, "scale": 0.25, **others}
    attention = AttentionPlan(num_kv_heads=1, head_dim=size, rope=rope, latent=latent, **given)
    return replace(PLAIN, attention=attention)


def states() -> Iterator[tuple[Any, ...]]:
    """A name and layers, for every kind of state, and for branches that share a norm."""
    for state, fields_of in ((STATE, STATES), (MAMBA, MAMBAS), (CONVOLUTION, CONVOLUTIONS)):
        kind = type(state).__name__
        yield f"state, {kind}", replace(PLAIN, state=state), PLAIN
        for name, values in fields_of.items():
            for value in values:
                other = replace(PLAIN, state=replace(state, **{name: value}))
                yield f"{kind}, {name}, {value}", other, PLAIN
    joining = replace(PLAIN, mlp=None, branch_scale=0.6, joins_next=True)
    yield "joins_next", joining, replace(PLAIN, branch_scale=1.3)
    yield "joins_next, state", replace(joining, state=MAMBA), PLAIN


def several_streams(layer: LayerPlan) -> dict[str, ModelSpec]:
    """With more tokens than the table of embeddings for single layers has."""
    embeddings, streams = LayerEmbeddingsPlan(50, 6, NORM), StreamsPlan(3, 0, 5)
    spec = replace(SPEC, layers=(layer, replace(layer, embedding=None)))
    spec = replace(spec, layer_embeddings=embeddings)
    made = {"streams": replace(spec, streams=streams)}
    for name, values in STREAMS.items():
        for value in values:
            other = replace(streams, **{name: value})
            made[f"streams, {name}: {value}"] = replace(spec, streams=other)
    return made


def changes() -> dict[str, ModelSpec]:
    """Specs that differ from the plain one in one field, and a few that differ in many."""
    made: dict[str, ModelSpec] = {}

    def add(name: str, value: Any, *layers: LayerPlan) -> None:
        made[f"{name}: {value}"] = replace(SPEC, layers=layers)

    for name, values in ATTENTION.items():
        for value in values:
            layer = replace(PLAIN, attention=replace(PLAIN.attention, **{name: value}))
            add(name, value, PLAIN, layer)
    for name, attention in NORMED.items():
        add(name, "", replace(PLAIN, attention=attention), PLAIN)
    add("latent", "", *[with_rows(ROWS)] * 2)
    for name, values in LATENT.items():
        for value in values:
            add(f"latent, {name}", value, *[with_rows(replace(ROWS, **{name: value}))] * 2)
    for name, value in BESIDE_ROWS.items():
        add(f"latent beside {name}", value, *[with_rows(ROWS, **{name: value})] * 2)
    for name, values in MLP.items():
        for value in values:
            add(name, value, PLAIN, replace(PLAIN, mlp=replace(GATED, **{name: value})))
    add("experts", "", PLAIN, MIXTURE)
    for name, values in EXPERTS.items():
        for value in values:
            layer = replace(MIXTURE, mlp=replace(MIXED, **{name: value}))
            add(f"experts, {name}", value, PLAIN, layer)
    for name, experts in BESIDE.items():
        add(f"experts, {name}", "", PLAIN, replace(MIXTURE, mlp=experts))
    learned = MlpPlan(40, "xielu", gated=False)
    add("activation", "xielu", replace(PLAIN, mlp=learned), PLAIN)
    plain_mlp = MlpPlan(40, "gelu_tanh", gated=False, bias=True)
    normed_inside = replace(plain_mlp, inner_norm=NormPlan(1e-3, "layer", bias=True))
    add("mlp", "plain, normed inside", replace(PLAIN, mlp=normed_inside), PLAIN)
    add("mlp", "plain", replace(PLAIN, mlp=plain_mlp, norms="parallel"), PLAIN)
    for name, values in LAYER.items():
        for value in values:
            add(name, value, replace(PLAIN, **{name: value}), PLAIN)
    for name, *layers in states():
        add(name, "", *layers)
    reading = replace(PLAIN.attention, kv_from=0)
    add("kv_from", 0, PLAIN, replace(PLAIN, attention=reading))
    small = replace(PLAIN.attention, window=9, head_dim=8, rope=Rope(100.0, 8))
    windowed = replace(PLAIN, attention=small)
    read = replace(PLAIN, attention=replace(small, qk_norm=NORM, kv_from=1))
    add("kv_from", "1, normed, other heads", PLAIN, windowed, read)
    branched = replace(PLAIN, embedding=EmbeddingBranchPlan(6, "gelu_tanh"))
    for plan in (LayerEmbeddingsPlan(60, 6, NORM), LayerEmbeddingsPlan(60, 6, NormPlan(0.3))):
        add("embedding", plan.norm.eps, branched, replace(branched, norms="both", is_scaled=True))
        made[f"embedding: {plan.norm.eps}"] = replace(
            made[f"embedding: {plan.norm.eps}"], layer_embeddings=plan
        )
    made |= several_streams(replace(branched, norms="both"))
    scaled = replace(PLAIN, norms="both", branch_scale=0.3)
    add("both and scaled", "", scaled, replace(scaled, norms="parallel"))
    placed = replace(SPEC, embedding_scale=5.7, learned_positions=LearnedPositions(40, 2))
    made["embedding_scale beside learned_positions"] = placed
    made["embedding_scale beside waves"] = replace(SPEC, embedding_scale=5.7, waves=Waves(2))
    for name, values in MODEL.items():
        made |= {f"{name}: {v}": replace(SPEC, **{name: v}) for v in values}
    return made


SPECS = {"plain": SPEC, **changes()}


def random_weights(spec: ModelSpec) -> dict[str, Tensor]:
    """By name, so that two specs share what both have; nothing is 0 or 1."""
    made = {}
    for weight in weights_of(spec):
        seed = sum(ord(c) * 31**i for i, c in enumerate(weight.name)) % 2**31
        generator = torch.Generator().manual_seed(seed)
        values = torch.randn(weight.shape, generator=generator)
        norm = weight.name.endswith("norm.weight")
        made[weight.name] = 1 + 0.3 * values if norm else 0.3 * values
    return made


def built(spec: ModelSpec, weights: dict[str, Tensor], kind: str) -> Decoder:
    shape = head_shape(spec, 4, torch.float32)
    makers: dict[str, Any] = {
        "reference": lambda: ReferenceKernels(shape),
        "torch": lambda: torch_kernels(shape, batch_invariant=False),
        "invariant": lambda: torch_kernels(shape, batch_invariant=True),
        "native": lambda: kernels_for("cpu", shape, batch_invariant=False),
    }
    kernels: Kernels = makers[kind]()
    return build_model(spec, dict(weights), kernels, shape, max_len=64, tp=TensorParallel())


def test_every_field_has_another_value_here() -> None:
    """What this file goes through is everything that a plan can say."""
    tables = (ATTENTION, LATENT, MLP, EXPERTS, LAYER, STATES, MAMBAS, CONVOLUTIONS, MODEL)
    known = {name for table in (*tables, STREAMS) for name in table}
    known |= {"qk_norm_over", "attention", "latent", "mlp", "state", "kv_from", "embedding"}
    known |= {"layer_embeddings", "joins_next", "two_way"}  # two_way is of media: tests/media
    known |= {
        "qk_norm_over",
        "qk_norm_behind",
        "attention",
        "latent",
        "mlp",
        "state",
        "kv_from",
        "embedding",
    }
    known |= {"layer_embeddings", "streams"}
    known |= BESIDE.keys()
    around = {"family", "vocab_size", "hidden_size", "max_model_len", "layers"}
    around |= {"eos_ids", "bos_id", "dtype"}
    around.add("whole")  # of the share of one of several ranks: tests/ranks
    # Of what files have, and of what a sound gives: tests/media/test_whisper.py.
    around |= {"k_bias", "cross"}
    kinds = (
        AttentionPlan,
        LatentPlan,
        MlpPlan,
        ExpertsPlan,
        LayerPlan,
        DeltaNetPlan,
        ConvolutionPlan,
        MambaPlan,
        StreamsPlan,
        ModelSpec,
    )
    assert {field.name for kind in kinds for field in fields(kind)} == known | around


@cache
def oracle_logits(name: str) -> Tensor:
    return PlanOracle(SPECS[name], random_weights(SPECS[name])).logits(TEXT)


@pytest.mark.parametrize("name", SPECS)
def test_a_plan_is_computed_as_it_says(name: str) -> None:
    spec, expected = SPECS[name], oracle_logits(name)
    for kind in ("reference", "torch", "invariant", "native"):
        with torch.inference_mode():
            model = built(spec, random_weights(spec), kind)
            rows = model.kernels.padded(len(TEXT))
            hidden = hidden_states(model, spec, TEXT + TEXT[:1] * (rows - len(TEXT)))[: len(TEXT)]
            pad = model.kernels.padded(len(hidden)) - len(hidden)
            logits = model.logits(torch.cat([hidden, hidden[:1].expand(pad, -1)]))[: len(TEXT)]
        apart = float((logits - expected).abs().max())
        assert apart < 2e-5 * float(expected.abs().max()), kind


def test_no_field_does_nothing() -> None:
    """Each change gives other logits than the plain spec does, and than every other."""
    logits = {
        name: oracle_logits(name)
        for name in SPECS
        if "rounds_last" not in name  # which says how 16 bits are rounded
    }
    names = list(logits)
    for i, one in enumerate(names):
        for other in names[i + 1 :]:
            assert float((logits[one] - logits[other]).abs().max()) > 1e-3, (one, other)


def test_a_spec_goes_to_another_process_and_back() -> None:
    """With every kind of layer once, and ropes that are not scaled; a plain model stays plain."""
    for name, spec in SPECS.items():
        back = from_json(to_json(for_kernels(spec)))
        assert back.layers == tuple(dict.fromkeys(unscaled(layer) for layer in spec.layers)), name
        assert back == replace(spec, layers=back.layers), name
        assert back.is_plain or not spec.is_plain, name


def unscaled(layer: LayerPlan) -> LayerPlan:
    rope = layer.attention.rope
    bare = None if rope is None else replace(rope, scaling=None)
    return replace(layer, attention=replace(layer.attention, rope=bare))


def test_latents_beside_keys_and_values_are_refused_by_name() -> None:
    spec = replace(SPEC, layers=(PLAIN, with_rows(ROWS)))
    with pytest.raises(UnsupportedModel, match="latents beside"):
        built(spec, random_weights(spec), "torch")
