"""GTE: BERT with rotary positions and a gated feed-forward. No torch."""

from __future__ import annotations

from dataclasses import replace

from quire.families.encoders import bert
from quire.families.encoders.family import (
    Dense,
    EncoderFamily,
    inner_activation,
    pooled_classifier,
    read_encoder,
    with_rope,
)
from quire.families.fields import Fields
from quire.spec import EncoderSpec


def read(fields: Fields) -> EncoderSpec:
    types = fields.values.get("type_vocab_size", 1)
    spec = read_encoder(
        fields,
        max_model_len=fields.count("max_position_embeddings"),
        num_types=0 if types == 0 else fields.count("type_vocab_size", 1),
        norm_eps=fields.positive("layer_norm_eps", 1e-12),
        activation=inner_activation(fields, "hidden_act"),
        gated=True,
        up_bias=False,
    )
    return with_rope(spec, fields, unsaid_theta=160_000.0)


FAMILY = EncoderFamily(
    name="gte",
    stems=("Gte",),
    model_types=("gte",),
    prefix="gte.",
    read=read,
    names=replace(
        bert.NAMES,
        positions="",
        qkv=("attention.qkv_proj",),
        o="attention.o_proj",
        attn_norm="attn_ln",
        up=("mlp.up_gate_proj",),
        down="mlp.down_proj",
        mlp_norm="mlp_ln",
        gate_behind=True,
    ),
    classifier=pooled_classifier(Dense("gte.pooler.dense", "tanh"), Dense("classifier")),
    without_effect=bert.WITHOUT_EFFECT,
)
