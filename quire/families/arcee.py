"""Arcee (AFM): a plain decoder with a feed-forward of squared relu without gate. No torch."""

from __future__ import annotations

from quire.families.family import Family, sizes
from quire.families.fields import Fields
from quire.families.reading import read_biases, read_heads, read_plain_decoder
from quire.layer_plan import MlpPlan
from quire.spec import ModelSpec


def read(fields: Fields) -> ModelSpec:
    width, biased = fields.count("intermediate_size"), fields.flag("mlp_bias", False)
    return read_plain_decoder(
        fields,
        read_heads(fields),
        norm_eps=1e-5,
        mlp=MlpPlan(width, "relu2", gated=False, bias=biased),
        **read_biases(fields),
    )


FAMILY = Family(
    name="arcee",
    architectures=("ArceeForCausalLM",),
    read=read,
    unsaid=sizes(32_000, 2560, 18_432, 32, 32, 4096),
    gguf="arcee",
    gguf_interleaved=True,
    only={"hidden_act": ("relu2",)},
)
