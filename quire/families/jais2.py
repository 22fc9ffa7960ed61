"""Jais 2: LayerNorms and products with biases, and a feed-forward of squared relu without gate. No
torch."""

from __future__ import annotations

from quire.families.family import Family, sizes
from quire.families.fields import Fields
from quire.families.reading import read_biases, read_heads, read_plain_decoder
from quire.layer_plan import MlpPlan, NormPlan
from quire.spec import ModelSpec


def read(fields: Fields) -> ModelSpec:
    width, bias = fields.count("intermediate_size"), fields.flag("mlp_bias", True)
    return read_plain_decoder(
        fields,
        read_heads(fields),
        norm=NormPlan(fields.positive("layer_norm_eps", 1e-5), kind="layer", bias=True),
        mlp=MlpPlan(width, "relu2", gated=False, bias=bias),
        **read_biases(fields, unsaid=True),
    )


FAMILY = Family(
    name="jais2",
    architectures=("Jais2ForCausalLM",),
    read=read,
    unsaid=sizes(150_272, 3328, 26_624, 32, 26, 8192),
    gguf="jais2",
    only={"hidden_act": ("relu2",)},
)
