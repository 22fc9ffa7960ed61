"""Nemotron and Minitron: LayerNorm of 1 + w, rope on half of each head, and a feed-forward of
squared relu without gate. No torch."""

from __future__ import annotations

from quire.families.family import Family, sizes
from quire.families.fields import Fields
from quire.families.reading import read_biases, read_heads, read_plain_decoder
from quire.families.rope_config import read_rope
from quire.layer_plan import MlpPlan, NormPlan
from quire.spec import ModelSpec


def read(fields: Fields) -> ModelSpec:
    heads, width = read_heads(fields), fields.count("intermediate_size")
    eps = fields.positive("norm_eps", 1e-5)
    return read_plain_decoder(
        fields,
        heads,
        rope=read_rope(fields, heads.head_dim, partial=True, factor=0.5),
        norm=NormPlan(eps, kind="layer", bias=True, one_plus=True),
        mlp=MlpPlan(width, "relu2", gated=False, bias=fields.flag("mlp_bias", False)),
        **read_biases(fields),
    )


FAMILY = Family(
    name="nemotron",
    architectures=("NemotronForCausalLM",),
    read=read,
    unsaid=sizes(256_000, 6144, 24_576, 32, 48, 4096),
    gguf="nemotron",
    gguf_words=lambda fields, config: {"norm_eps": config["layer_norm_eps"]},
    partial_rotary=True,
    only={"hidden_act": ("relu2",)},
)
