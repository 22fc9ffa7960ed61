"""Seed-OSS: heads of 128 numbers whatever the hidden size, biases of q, k and v. No torch."""

from __future__ import annotations

from quire.families.family import Family, LayerNames, Name, sizes
from quire.families.fields import Fields
from quire.families.reading import read_heads, read_plain_decoder
from quire.spec import ModelSpec


def read(fields: Fields) -> ModelSpec:
    return read_plain_decoder(
        fields,
        read_heads(fields, kv_heads=8, head_dim=128),
        qkv_bias=fields.flag("attention_bias", True),
        o_bias=fields.flag("attention_out_bias", False),
        mlp_bias=fields.flag("mlp_bias", False),
    )


FAMILY = Family(
    name="seed_oss",
    architectures=("SeedOssForCausalLM",),
    read=read,
    unsaid=sizes(155_136, 4096, 27_648, 64, 80, 524_288),
    gguf="seed_oss",
    names=LayerNames(mlp_norm=Name("post_attention_layernorm", "post_attention_norm")),
    without_effect={"residual_dropout": "training"},
)
