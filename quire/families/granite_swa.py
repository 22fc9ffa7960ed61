"""Granite with windows: three layers of four have one, every head has a sink, and each layer may
have a theta of its own, or no rope. No torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from quire.families import granite
from quire.families.family import Family, sizes
from quire.families.fields import Fields
from quire.families.reading import num_layers, read_heads, read_window, windows_by_kind
from quire.families.rope_config import read_rope
from quire.layer_plan import LayerPlan
from quire.spec import ModelSpec

PERIOD = 4  # the first layer of each has no window
# Scaled in the same way with every theta.
ROPE_KINDS = {kind: kind for kind in ("linear", "llama3", "yarn")}


def read(fields: Fields) -> ModelSpec:
    fields = fields.under({}, rms_norm_eps=1e-5)
    spec = read_windowed(fields, granite.read, kv_heads=4)
    return replace(spec, tied_embeddings=fields.flag("tie_word_embeddings", True))


def read_windowed(fields: Fields, read: Callable[..., ModelSpec], **given: Any) -> ModelSpec:
    """What another reader makes of a config, with sinks, windows, and thetas by layer. `given`:
    more arguments of that reader."""
    window, count = read_window(fields, unsaid=128), num_layers(fields)
    usual = tuple(window if i % PERIOD else None for i in range(count))
    head_dim = read_heads(fields).head_dim
    spec = read(
        fields,
        rope=read_rope(fields, head_dim, kinds=ROPE_KINDS),
        windows=windows_by_kind(fields, window) or usual,
        sinks=True,
        **given,
    )
    thetas = fields.values.get("layer_rope_theta")
    if thetas is None:
        return spec
    if not isinstance(thetas, list) or len(thetas) != count:
        raise fields.wrong("layer_rope_theta", f"a list of {count} numbers")
    said = (Fields({"layer_rope_theta": one}, fields.source) for one in thetas)
    read_thetas = [one.not_negative("layer_rope_theta", 0.0) for one in said]
    pairs = zip(spec.layers, read_thetas, strict=True)
    return replace(spec, layers=tuple(_with_theta(*pair) for pair in pairs))


def _with_theta(layer: LayerPlan, theta: float) -> LayerPlan:
    """The layer with another theta; 0: without rope."""
    attention = layer.attention
    rope = attention.rope and replace(attention.rope, theta=theta)
    return replace(layer, attention=replace(attention, rope=rope if theta else None))


FAMILY = Family(
    name="granite_swa",
    architectures=("GraniteSWAForCausalLM",),
    read=read,
    unsaid=sizes(100_352, 2560, 8192, 24, 20, 8192),
)
