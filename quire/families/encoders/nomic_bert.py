"""NomicBERT: BERT with rotary positions and a gated feed-forward, without biases. Version 2 has
biases and plain feed-forwards, with experts in every second layer. No torch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from quire.families.encoders import bert
from quire.families.encoders.family import (
    Dense,
    EncoderFamily,
    EncoderNames,
    inner_activation,
    pooled_classifier,
    read_encoder,
    with_rope,
)
from quire.families.fields import Fields
from quire.spec import EncoderSpec

THETA = 1000.0
# Names in configs that are older than the class in Transformers.
OLDER_WORDS = {
    "hidden_size": "n_embd",
    "intermediate_size": "n_inner",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
    "layer_norm_eps": "layer_norm_epsilon",
}
OFF = (
    *("prenorm", "causal", "parallel_block", "use_rms_norm", "scale_attn_by_inverse_layer_idx"),
    *("rotary_emb_interleaved", "rotary_emb_scale_base", "rotary_scaling_factor"),
    *("moe_normalize_expert_weights", "expert_choice_router"),
)
BIASES = ("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias")
NAMES = EncoderNames(
    words="embeddings.word_embeddings",
    types="embeddings.token_type_embeddings",
    embed_norm="emb_ln",
    layer="encoder.layers.{}.",
    qkv=("attn.Wqkv",),
    o="attn.out_proj",
    attn_norm="norm1",
    up=("mlp.fc12", "mlp.fc11"),
    down="mlp.fc2",
    mlp_norm="norm2",
)


def read(fields: Fields) -> EncoderSpec:
    words = OLDER_WORDS if "n_embd" in fields.values else {}
    fields = fields.under(words, max_position_embeddings=2048)
    spec = read_encoder(
        fields,
        max_model_len=fields.count("max_position_embeddings"),
        num_types=fields.count("type_vocab_size", 2),
        norm_eps=fields.positive("layer_norm_eps", 1e-12),
        **_feed_forward(fields),
    )
    if fields.count("head_dim", spec.head_dim) != spec.head_dim:
        raise fields.unsupported("head_dim", f"hidden_size / heads, {spec.head_dim}")
    return with_rope(spec, fields, unsaid_theta=fields.positive("rotary_emb_base", THETA))


def _feed_forward(fields: Fields) -> dict[str, Any]:
    """Fields of the feed-forward: gated without biases in all layers, or plain ones with biases and
    experts in every `moe_every_n_layers`-th layer."""
    has_experts = bool(fields.values.get("moe_every_n_layers"))
    for key in BIASES:
        if fields.flag(key, has_experts) is not has_experts:
            raise fields.unsupported(key, f"{str(has_experts).lower()} in this family")
    named = "gelu" if has_experts else "swiglu"
    if fields.word("activation_function", named) != named:
        raise fields.unsupported("activation_function", named)
    biased = {"attention_bias": has_experts, "mlp_bias": has_experts, "gated": not has_experts}
    if not has_experts:
        return {**biased, "activation": inner_activation(fields, "hidden_act", "silu")}
    count = fields.count("num_experts")
    return {
        **biased,
        "activation": "gelu",
        "num_experts": count,
        "num_chosen": fields.count("moe_top_k", most=count),
        "expert_period": fields.count("moe_every_n_layers"),
    }


FAMILY = EncoderFamily(
    name="nomic_bert",
    stems=("NomicBert",),
    model_types=("nomic_bert",),
    prefix="nomic_bert.",
    read=read,
    names=NAMES,
    mixture_names=replace(NAMES, up=("mlp.fc1",), router="mlp.router.layer", experts="mlp.experts"),
    classifier=pooled_classifier(Dense("nomic_bert.pooler.dense", "tanh"), Dense("classifier")),
    only={
        **dict.fromkeys(OFF, (False,)),
        "num_shared_experts": (0,),
        "ffn_div": (1,),
        "rotary_emb_fraction": (1.0,),
        "scale_attn_weights": (True,),
    },
    without_effect=bert.WITHOUT_EFFECT,
)
