"""OLMo 3: norms behind the branches alone, q and k normed over all heads; three layers with a
window to one without, which alone has a scaled rope. No torch."""

from __future__ import annotations

from typing import Any

from quire.families.family import Family, sizes
from quire.families.fields import Fields
from quire.families.reading import (
    read_biases,
    read_heads,
    read_plain_decoder,
    read_window,
    windows_in_turn,
    with_rope_of_windows,
)
from quire.families.rope_config import read_ropes_by_kind
from quire.layer_plan import NormPlan
from quire.spec import ModelSpec

PERIOD = 4
THETAS = {"full_attention": 500_000.0, "sliding_attention": 500_000.0}


def read(fields: Fields) -> ModelSpec:
    heads = read_heads(fields)
    ropes = read_ropes_by_kind(fields, heads.head_dim, THETAS, scaled="full_attention")
    spec = read_plain_decoder(
        fields,
        heads,
        rope=ropes["full_attention"],
        windows=windows_in_turn(fields, read_window(fields), PERIOD),
        norm=NormPlan(fields.positive("rms_norm_eps", 1e-5), rounds_last=True),
        qk_norm=True,
        qk_norm_over="width",
        **read_biases(fields),
        layer={"norms": "after"},
    )
    return with_rope_of_windows(spec, ropes["sliding_attention"])


def _gguf_words(fields: Fields, config: dict[str, Any]) -> dict[str, Any]:
    """A theta that all layers share, and a scaling that those without a window have."""
    theta = {"rope_type": "default", "rope_theta": config["rope_theta"]}
    scaled = {**theta, **(config["rope_scaling"] or {})}
    ropes = {"full_attention": scaled, "sliding_attention": theta}
    return {"rope_parameters": ropes, "rope_scaling": None}


FAMILY = Family(
    name="olmo3",
    architectures=("Olmo3ForCausalLM",),
    read=read,
    unsaid=sizes(50_304, 4096, 11_008, 32, 32, 2048),
    gguf="olmo2",
    gguf_windows=True,
    gguf_words=_gguf_words,
)
