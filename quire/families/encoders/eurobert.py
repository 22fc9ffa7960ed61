"""EuroBERT: the layers of a plain decoder, where a token also sees those after it. No torch."""

from __future__ import annotations

from quire.families.encoders.family import (
    Dense,
    EncoderFamily,
    EncoderNames,
    HeadPart,
    inner_activation,
    read_encoder,
    with_rope,
)
from quire.families.fields import Fields
from quire.families.reading import read_heads
from quire.spec import EncoderSpec

NAMES = EncoderNames(
    words="embed_tokens",
    embed_norm="",
    layer="layers.{}.",
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    o="self_attn.o_proj",
    attn_norm="input_layernorm",
    up=("mlp.gate_proj", "mlp.up_proj"),
    down="mlp.down_proj",
    mlp_norm="post_attention_layernorm",
    norm="norm",
)


def read(fields: Fields) -> EncoderSpec:
    heads = read_heads(fields)
    spec = read_encoder(
        fields,
        max_model_len=fields.count("max_position_embeddings"),
        norm_eps=fields.positive("rms_norm_eps", 1e-5),
        activation=inner_activation(fields, "hidden_act", "silu"),
        gated=True,
        norms="before",
        norm_kind="rms",
        embed_norm=False,
        norm_bias=False,
        attention_bias=fields.flag("attention_bias", False),
        mlp_bias=fields.flag("mlp_bias", False),
        num_kv_heads=heads.kv_heads,
        head_dim=heads.head_dim,
    )
    return with_rope(spec, fields, unsaid_theta=10_000.0)


def classifier(fields: Fields, per_token: bool) -> tuple[HeadPart, ...]:
    if per_token:
        return (Dense("classifier"),)
    return Dense("dense", "gelu"), Dense("classifier")


FAMILY = EncoderFamily(
    name="eurobert",
    stems=("EuroBert",),
    model_types=("eurobert",),
    prefix="model.",
    read=read,
    names=NAMES,
    classifier=classifier,
    label_pooling={"late": "late", "bos": "cls", "mean": "mean"},
    without_effect={
        "attention_dropout": "training",
        "mask_token_id": "the tokenizer's",
        "pretraining_tp": "how Transformers computes",
    },
)
