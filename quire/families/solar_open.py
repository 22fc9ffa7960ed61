"""Solar Open: experts chosen by sigmoids of scores plus a bias, and a shared one, in every layer.
No torch."""

from __future__ import annotations

from quire.families.family import Family, LayerNames
from quire.families.fields import Fields
from quire.families.mixtures import ROUTER_KEYS, SHARED_NAMES, read_routed_experts
from quire.families.reading import read_heads, read_plain_decoder
from quire.families.rope_config import read_rope
from quire.spec import ModelSpec


def read(fields: Fields) -> ModelSpec:
    heads = read_heads(fields, kv_heads=8, head_dim=128)
    experts = read_routed_experts(fields, count=128, width=1280, per_token=8)
    return read_plain_decoder(
        fields,
        heads,
        rope=read_rope(fields, heads.head_dim, theta=1_000_000.0),
        norm_eps=1e-5,
        qkv_bias=fields.flag("attention_bias", False),
        mlp=experts,
    )


FAMILY = Family(
    name="solar_open",
    architectures=("SolarOpenForCausalLM",),
    read=read,
    unsaid={
        "vocab_size": 196_608,
        "hidden_size": 4096,
        "num_hidden_layers": 48,
        "num_attention_heads": 64,
        "max_position_embeddings": 131_072,
    },
    names=LayerNames(**SHARED_NAMES),
    without_effect=ROUTER_KEYS,
)
