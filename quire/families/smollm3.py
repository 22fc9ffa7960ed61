"""SmolLM3: every fourth layer has no positions. No torch."""

from __future__ import annotations

from dataclasses import replace

from quire.families.family import Family, sizes
from quire.families.fields import Fields
from quire.families.reading import (
    read_biases,
    read_heads,
    read_plain_decoder,
    read_turned,
    read_window,
    windows_by_kind,
)
from quire.families.rope_config import read_rope
from quire.layer_plan import LayerPlan
from quire.spec import ModelSpec

THETA = 2_000_000.0


def read(fields: Fields) -> ModelSpec:
    heads = read_heads(fields, kv_heads=4)
    turned = read_turned(fields)
    window = read_window(fields, unsaid=None)
    # Used if layer_types does not list the windows.
    windowed = fields.flag("use_sliding_window", False)
    unturned = tuple(window if windowed and not each else None for each in turned)
    spec = read_plain_decoder(
        fields,
        heads,
        rope=read_rope(fields, heads.head_dim, theta=THETA),
        windows=windows_by_kind(fields, window) or unturned,
        **read_biases(fields),
        mlp_bias=fields.flag("mlp_bias", False),
        facts={"tied_embeddings": fields.flag("tie_word_embeddings", True)},
    )
    pairs = zip(spec.layers, turned, strict=True)
    return replace(spec, layers=tuple(one if yes else _unturned(one) for one, yes in pairs))


def _unturned(layer: LayerPlan) -> LayerPlan:
    return replace(layer, attention=replace(layer.attention, rope=None))


FAMILY = Family(
    name="smollm3",
    architectures=("SmolLM3ForCausalLM",),
    read=read,
    unsaid=sizes(128_256, 2048, 11_008, 36, 16, 32_768),
    gguf="smollm3",
    gguf_interleaved=True,
)
