"""Apertus: q and k normed head by head, a rope scaled from the start, and a feed-forward without a
gate, whose activation is learned. No torch."""

from __future__ import annotations

from typing import Any

from quire.families.family import Family, LayerNames, Name, sizes
from quire.families.fields import Fields
from quire.families.reading import read_biases, read_heads, read_plain_decoder
from quire.families.rope_config import read_rope
from quire.layer_plan import MlpPlan
from quire.spec import ModelSpec

# Used if a config has no rope settings.
ROPE: dict[str, Any] = {
    "rope_type": "llama3",
    "rope_theta": 12_000_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def read(fields: Fields) -> ModelSpec:
    said = fields.values.get("rope_scaling") or fields.values.get("rope_parameters")
    fields, heads = fields if said else fields.under({}, rope_parameters=ROPE), read_heads(fields)
    return read_plain_decoder(
        fields,
        heads,
        rope=read_rope(fields, heads.head_dim, theta=ROPE["rope_theta"]),
        norm_eps=1e-5,
        qk_norm=True,
        mlp=MlpPlan(fields.count("intermediate_size"), "xielu", gated=False),
        **read_biases(fields),
    )


FAMILY = Family(
    name="apertus",
    architectures=("ApertusForCausalLM",),
    read=read,
    unsaid=sizes(131_072, 4096, 14_336, 32, 32, 65_536),
    names=LayerNames(
        attn_norm=Name("attention_layernorm", "attn_norm"),
        mlp_norm=Name("feedforward_layernorm", "ffn_norm"),
    ),
    only={"hidden_act": ("xielu",)},
)
