"""Arcee Trinity: norms before and after both branches, gates behind attention, rope in layers with
a window alone, and experts chosen by sigmoids and a bias, but in the first layers. No torch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from quire.families.family import Family, LayerNames, Name, sizes
from quire.families.fields import Fields
from quire.families.mixtures import (
    GGUF_ROUTING,
    ROUTER_KEYS,
    SHARED_NAMES,
    gguf_sigmoid_routing,
    read_routed_experts,
    with_experts,
)
from quire.families.reading import (
    read_heads,
    read_plain_decoder,
    read_window,
    windows_in_turn,
)
from quire.layer_plan import NormPlan
from quire.spec import ModelSpec

PERIOD = 4  # one layer in each period has no window: its last
WORDS = {
    "n_routed_experts": "num_experts",
    "n_shared_experts": "num_shared_experts",
    "routed_scaling_factor": "route_scale",
}


def read(fields: Fields) -> ModelSpec:
    period = fields.count("global_attn_every_n_layers", PERIOD)
    root = fields.count("hidden_size") ** 0.5
    spec = read_plain_decoder(
        fields,
        read_heads(fields, head_dim=128),
        windows=windows_in_turn(fields, read_window(fields, unsaid=1024), period),
        norm=NormPlan(fields.positive("rms_norm_eps", 1e-5), rounds_last=True),
        qk_norm=True,
        output_gate=True,
        layer={"norms": "both"},
        facts={"embedding_scale": root if fields.flag("mup_enabled", False) else 1.0},
    )
    spec = spec.with_attention(lambda one: one if one.window else replace(one, rope=None))
    said = fields.under(WORDS, n_shared_experts=2)
    experts = read_routed_experts(said, count=64, width=1408, per_token=6, renormalise=True)
    first = {"first_k_dense_replace": fields.whole("num_dense_layers", 1)}
    return with_experts(spec, Fields(first, fields.source), experts)


def _gguf_words(fields: Fields, config: dict[str, Any]) -> dict[str, Any]:
    """Files do not say how embeddings are scaled: programs that run them always do."""
    routing = gguf_sigmoid_routing(fields, "afmoe", config)
    return {
        "num_hidden_layers": routing["num_hidden_layers"],
        "num_shared_experts": routing["n_shared_experts"],
        "num_dense_layers": routing["first_k_dense_replace"],
        "route_scale": routing["routed_scaling_factor"],
        "mup_enabled": True,
        "sliding_window": fields.count("afmoe.attention.sliding_window"),
    }


FAMILY = Family(
    name="afmoe",
    architectures=("AfmoeForCausalLM",),
    read=read,
    unsaid=sizes(200_192, 2048, 6144, 32, 16, 16_384),
    gguf="afmoe",
    gguf_experts=True,
    gguf_windows=True,
    gguf_words=_gguf_words,
    gguf_reads=GGUF_ROUTING,
    names=LayerNames(
        attn_gate=Name("self_attn.gate_proj", "attn_gate"),
        mlp_norm=Name("pre_mlp_layernorm", "ffn_norm"),
        mlp_post_norm=Name("post_mlp_layernorm", "post_ffw_norm"),
        router=Name("mlp.router.gate", "ffn_gate_inp"),
        router_choice=Name("mlp.expert", "exp_probs_b", bare=True),
        **SHARED_NAMES,
    ),
    without_effect=ROUTER_KEYS,
    only={
        "attention_bias": (False,),
        "route_norm": (True,),
        "score_func": ("sigmoid",),
        **dict.fromkeys(("n_group", "num_expert_groups", "num_limited_groups"), (1,)),
    },
)
