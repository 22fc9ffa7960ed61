"""ERNIE 4.5 with experts from one layer to another, chosen by a softmax and a bias, and shared
experts. No torch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from quire.families import ernie4_5
from quire.families.family import Family, LayerNames, Name, sizes
from quire.families.fields import Fields
from quire.families.mixtures import ROUTER_KEYS, SHARED_NAMES, read_experts, with_experts
from quire.families.reading import num_layers
from quire.layer_plan import MlpPlan
from quire.spec import LogitsPlan, ModelSpec

# The usual names of keys, and this family's.
WORDS = {
    "num_experts": "moe_num_experts",
    "num_experts_per_tok": "moe_k",
    "decoder_sparse_step": "moe_layer_interval",
    "first_k_dense_replace": "moe_layer_start_index",
}
LEAST_SUM = 1e-12  # of the scores of chosen experts, which are always larger


def read(fields: Fields) -> ModelSpec:
    fields, biased = fields.under(WORDS, first_k_dense_replace=1), fields.flag("use_bias", False)
    width = fields.count("moe_intermediate_size", 1536)
    shared = width * fields.whole("moe_num_shared_experts", 2)
    experts = read_experts(
        fields,
        width,
        count=64,
        per_token=6,
        renormalise=True,
        choice_bias=True,
        shared=MlpPlan(shared, bias=biased) if shared else None,
        shared_gate=False,
    )
    behind = list(range(_end(fields), num_layers(fields)))
    plain = ernie4_5.read_paired(fields, kv_heads=4)
    spec = replace(plain, logits=LogitsPlan(bias=biased))
    return with_experts(spec, fields.under({}, mlp_only_layers=behind), experts)


def _end(fields: Fields) -> int:
    """One more than the number of the last layer that may have experts."""
    last = fields.values.get("moe_layer_end_index")
    return num_layers(fields) if last in (None, -1) else fields.whole("moe_layer_end_index", 0) + 1


def _gguf_words(fields: Fields, config: dict[str, Any]) -> dict[str, Any]:
    said = Fields(
        {key: fields.values.get(f"ernie4_5-moe.{key}") for key in GGUF_READS}, fields.source
    )
    return {
        "moe_num_experts": config["num_experts"],
        "moe_k": config["num_experts_per_tok"],
        "moe_num_shared_experts": said.whole("expert_shared_count", 0),
        "moe_layer_interval": said.count("interleave_moe_layer_step", 1),
        "moe_layer_start_index": said.whole("leading_dense_block_count", 0),
    }


GGUF_READS = (
    *("expert_shared_count", "interleave_moe_layer_step", "leading_dense_block_count"),
    # The first says sigmoids, as files with a bias are taken to mean; the other, another width.
    *("expert_gating_func", "expert_shared_feed_forward_length"),
)
FAMILY = Family(
    name="ernie4_5_moe",
    architectures=("Ernie4_5_MoeForCausalLM",),
    read=read,
    unsaid=sizes(103_424, 2560, 12_288, 28, 20, 131_072),
    gguf="ernie4_5-moe",
    gguf_experts=True,
    gguf_words=_gguf_words,
    gguf_reads=GGUF_READS,
    names=LayerNames(
        router_choice=Name(
            "mlp.moe_statics.e_score_correction",
            "exp_probs_b",
            bare=True,
            hf_also="mlp.gate.moe_statics.e_score_correction",
        ),
        **SHARED_NAMES,
    ),
    without_effect=ROUTER_KEYS,
    only={"moe_norm_min": (LEAST_SUM,)},
)
