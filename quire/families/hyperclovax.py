"""HyperCLOVA X: the factors of Granite, and norms before and after the branches. No torch."""

from __future__ import annotations

from dataclasses import replace

from quire.families import granite
from quire.families.family import Family, LayerNames, Name, sizes
from quire.families.fields import Fields
from quire.families.reading import read_heads
from quire.layer_plan import NormPlaces
from quire.spec import LogitsPlan, ModelSpec


def read(fields: Fields) -> ModelSpec:
    usual = read_heads(fields).head_dim ** -0.5
    spec = granite.read(fields.under({}, attention_multiplier=usual))
    places: NormPlaces = "both" if fields.flag("use_post_norm", True) else "before"
    # Logits are multiplied with the number by which those of Granite are divided.
    logits = LogitsPlan(scale=fields.positive("logits_scaling", 1.0))
    layers = tuple(replace(layer, norms=places) for layer in spec.layers)
    return replace(spec, layers=layers, logits=logits)


FAMILY = Family(
    name="hyperclovax",
    architectures=("HyperCLOVAXForCausalLM",),
    read=read,
    unsaid=sizes(32_000, 4096, 11_008, 32, 32, 2048),
    names=LayerNames(
        attn_post_norm=Name("post_norm1", "post_attention_norm"),
        mlp_post_norm=Name("post_norm2", "post_ffw_norm"),
    ),
)
