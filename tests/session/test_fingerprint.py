"""What a model's fingerprint is made of."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from quire.layer_parts.state import DeltaNetPlan
from quire.layer_parts.streams import StreamsPlan
from quire.layer_plan import (
    AttentionPlan,
    CrossPlan,
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
from quire.session.fingerprint import _facts
from quire.spec import LayerEmbeddingsPlan, LearnedPositions, LogitsPlan, ModelSpec, Waves
from tests.specs import small_spec

SPEC = small_spec()
# Another value for each field that computes something and that no weight's shape or name shows.
ATTENTION = {
    "scale": 1.0,
    "softcap": 5.0,
    "window": 3,
    "chunk": 3,
    "rope": None,
    "qk_norm_over": "width",
    "qk_norm_behind": True,
    "query_growth": QueryGrowth(0.1, 8),
    "sinks": True,
    "output_gate": True,
    "k_bias": False,
    "latent": LatentPlan(8, 4, 4, 8, NormPlan(1e-6)),
    "kv_from": 0,
    "values_are_keys": True,
    "value_norm": 1e-6,
    "clip": 1.0,
    "inner_norm": NormPlan(1e-6),
}
MLP = {
    "activation": "relu",
    "gate_scale": 0.5,
    "sparse": SparsePlan(0.5, 64),
    "inner_norm": NormPlan(1e-6),
}
LAYER = {
    "norms": "after",
    "branch_scale": 2.0,
    "mlp_scale": 2.0,
    "joins_next": True,
    "state": DeltaNetPlan(4, 2, 8, 8, 4, NormPlan(1e-6)),
    "cross": CrossPlan(9),
    "beside": ExpertsPlan(4, 2, MlpPlan(16)),
    "embedding": EmbeddingBranchPlan(8, "silu"),
    "is_scaled": True,
}
SPEC_FIELDS = {
    "embedding_scale": 2.0,
    "embed_norm": NormPlan(1e-6),
    "logits": LogitsPlan(scale=2.0),
    "layer_embeddings": LayerEmbeddingsPlan(96, 8, NormPlan(1e-6)),
    "streams": StreamsPlan(2, 0, 4),
    "waves": Waves(),
}
# Sizes and parts show in the weights; lengths, ids and the stored type change no verdict.
SEEN_IN_WEIGHTS = {
    *("num_heads", "num_kv_heads", "head_dim", "qkv_bias", "o_bias", "qk_norm"),
    *("width", "gated", "bias", "attention", "mlp", "norm", "layers"),
    *("vocab_size", "hidden_size", "tied_embeddings", "learned_positions"),
}
NOT_COMPUTED_WITH = {"max_model_len", "eos_ids", "bos_id", "dtype", "two_way"}
OF_A_RANK = {"whole"}  # and no model's files are a rank's


def test_every_fact_of_a_spec_is_in_it_or_seen_otherwise() -> None:
    kinds = (ModelSpec, LayerPlan, AttentionPlan, MlpPlan)
    known = {*ATTENTION, *MLP, *LAYER, *SPEC_FIELDS, "family", *SEEN_IN_WEIGHTS, *NOT_COMPUTED_WITH}
    known |= OF_A_RANK
    assert {field.name for kind in kinds for field in fields(kind)} == known


def test_each_of_them_makes_another_fingerprint() -> None:
    layer = SPEC.layers[0]
    attention, mlp = layer.attention, layer.mlp
    assert isinstance(mlp, MlpPlan)
    others = [
        *(replace(layer, attention=replace(attention, **{k: v})) for k, v in ATTENTION.items()),
        replace(layer, attention=replace(attention, rope=Rope(10000.0, 8, interleaved=True))),
        *(replace(layer, mlp=replace(mlp, **{k: v})) for k, v in MLP.items()),
        *(replace(layer, **{k: v}) for k, v in LAYER.items()),
        *(
            replace(layer, norm=norm)
            for norm in (
                NormPlan(1e-6),
                NormPlan(1e-5, "layer"),
                NormPlan(1e-5, one_plus=True),
                NormPlan(1e-5, rounds_last=True),
            )
        ),
    ]
    specs = [replace(SPEC, layers=(SPEC.layers[0], other)) for other in others]
    specs += [replace(SPEC, **{k: v}) for k, v in SPEC_FIELDS.items()]
    specs += [
        replace(SPEC, streams=StreamsPlan(2, 1, 4))
    ]  # no weight shows which is the active one
    specs += [replace(SPEC, norm=NormPlan(1e-5, "layer")), replace(SPEC, family="mistral")]
    assert len({repr(_facts(spec)) for spec in (SPEC, *specs)}) == len(specs) + 1


@pytest.mark.parametrize("change", [{"eos_ids": (3,)}, {"max_model_len": 64}])
def test_what_is_not_computed_with_changes_nothing(change: dict[str, object]) -> None:
    assert _facts(replace(SPEC, **change)) == _facts(SPEC)  # type: ignore[arg-type]


def test_positions_show_in_the_weights() -> None:
    """A table of them is a tensor of its own; where it begins is not."""
    tables = [replace(SPEC, learned_positions=LearnedPositions(8, offset)) for offset in (0, 2)]
    assert _facts(tables[0]) != _facts(tables[1])
