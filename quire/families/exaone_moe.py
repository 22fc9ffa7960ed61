"""K-EXAONE: the attention of EXAONE 4 with norms before the branches, and experts chosen by
sigmoids and a bias, but in the first layers. No torch."""

from __future__ import annotations

from typing import Any

from quire.families import exaone4
from quire.families.family import Family, LayerNames, Name, sizes
from quire.families.fields import Fields
from quire.families.mixtures import (
    GGUF_ROUTING,
    ROUTER_KEYS,
    SHARED_NAMES,
    dense_layers,
    gguf_sigmoid_routing,
    read_routed_experts,
    with_experts,
)
from quire.spec import ModelSpec

WORDS = {"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"}


def read(fields: Fields) -> ModelSpec:
    spec, said = exaone4.read(fields, "before"), fields.under(WORDS, routed_scaling_factor=2.5)
    experts = read_routed_experts(said, count=64, width=1024, per_token=8)
    dense = dense_layers(fields, fields.whole("first_k_dense_replace", 1))
    # The list is preferred to the number of the first ones.
    listed = Fields({"mlp_only_layers": dense}, fields.source)
    return with_experts(spec, listed, experts)


def _gguf_words(fields: Fields, config: dict[str, Any]) -> dict[str, Any]:
    routing = gguf_sigmoid_routing(fields, "exaone-moe", config)
    return {**routing, "num_shared_experts": routing["n_shared_experts"], "sliding_window": None}


FAMILY = Family(
    name="exaone_moe",
    architectures=("ExaoneMoeForCausalLM",),
    read=read,
    unsaid=sizes(102_400, 4096, 16_384, 32, 32, 2048),
    gguf="exaone-moe",
    gguf_experts=True,
    gguf_windows=True,
    gguf_words=_gguf_words,
    gguf_reads=(*GGUF_ROUTING, "expert_shared_feed_forward_length"),
    names=LayerNames(
        router_choice=Name(
            "mlp.e_score_correction",
            "exp_probs_b",
            bare=True,
            hf_also="mlp.gate.e_score_correction",
        ),
        **SHARED_NAMES,
    ),
    without_effect=ROUTER_KEYS,
)
