"""SmolLM3: every fourth layer has no positions. No torch."""

from __future__ import annotations

from dataclasses import replace

from quire.families.family import Family, sizes
from quire.families.fields import Fields
from quire.families.reading import (
    num_layers,
    read_biases,
    read_heads,
    read_plain_decoder,
    read_window,
    windows_by_kind,
)
from quire.families.rope_config import read_rope
from quire.layer_plan import LayerPlan
from quire.spec import ModelSpec

INTERVAL, THETA = 4, 2_000_000.0


def read(fields: Fields) -> ModelSpec:
    heads = read_heads(fields, kv_heads=4)
    turned = _turned(fields)
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


def _turned(fields: Fields) -> list[bool]:
    """Which layers have rope: those with a 1 in no_rope_layers."""
    count, marks = num_layers(fields), fields.values.get("no_rope_layers")
    interval = fields.count("no_rope_layer_interval", INTERVAL)
    if marks is None:
        return [(layer + 1) % interval != 0 for layer in range(count)]
    is_list = isinstance(marks, list) and len(marks) >= count
    if not is_list or any(mark not in (0, 1) for mark in marks):
        raise fields.wrong("no_rope_layers", f"a list of {count} numbers, each 0 or 1")
    return [bool(mark) for mark in marks[:count]]


FAMILY = Family(
    name="smollm3",
    architectures=("SmolLM3ForCausalLM",),
    read=read,
    unsaid=sizes(128_256, 2048, 11_008, 36, 16, 32_768),
    gguf="smollm3",
    gguf_interleaved=True,
)
