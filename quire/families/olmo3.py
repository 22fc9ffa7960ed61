"""OLMo 3: norms only after the branches, q and k normed over all heads; three layers with a window
to one without, and only that one has a scaled rope. No torch."""

from __future__ import annotations

from typing import Any

from quire.families import olmo2
from quire.families.family import Family
from quire.families.fields import Fields
from quire.families.reading import read_heads, read_window, windows_in_turn, with_rope_of_windows
from quire.families.rope_config import read_ropes_by_kind
from quire.spec import ModelSpec

PERIOD = 4
THETAS = {"full_attention": 500_000.0, "sliding_attention": 500_000.0}


def read(fields: Fields) -> ModelSpec:
    head_dim = read_heads(fields).head_dim
    ropes = read_ropes_by_kind(fields, head_dim, THETAS, scaled="full_attention")
    windows = windows_in_turn(fields, read_window(fields), PERIOD)
    spec = olmo2.read(fields, rope=ropes["full_attention"], windows=windows)
    return with_rope_of_windows(spec, ropes["sliding_attention"])


def _gguf_words(fields: Fields, config: dict[str, Any]) -> dict[str, Any]:
    """One theta for all layers, and a scaling for those without a window."""
    theta = {"rope_type": "default", "rope_theta": config["rope_theta"]}
    scaled = {**theta, **(config["rope_scaling"] or {})}
    ropes = {"full_attention": scaled, "sliding_attention": theta}
    return {"rope_parameters": ropes, "rope_scaling": None}


FAMILY = Family(
    name="olmo3",
    architectures=("Olmo3ForCausalLM",),
    read=read,
    unsaid=olmo2.SIZES,
    gguf="olmo2",
    gguf_windows=True,
    gguf_words=_gguf_words,
)
