"""EXAONE 4: norms only after the branches, q and k normed head by head; three layers with a window
to one without, which has no positions then. No torch."""

from __future__ import annotations

from dataclasses import replace

from quire.families.family import Family, sizes
from quire.families.fields import Fields
from quire.families.reading import read_heads, read_plain_decoder, read_window, windows_in_turn
from quire.layer_plan import AttentionPlan, NormPlaces
from quire.spec import ModelSpec

PERIOD = 4  # one layer in each period has no window: its last


def read(fields: Fields, norms: NormPlaces = "after") -> ModelSpec:
    window, listed = read_window(fields), fields.values.get("layer_types") is not None
    # Beside a list of layers it may be a word like LLLG, and without windows 0.
    is_read = window is not None and not listed
    period = fields.count("sliding_window_pattern", PERIOD) if is_read else PERIOD
    spec = read_plain_decoder(
        fields,
        read_heads(fields, kv_heads=32),
        windows=windows_in_turn(fields, window, period),
        norm_eps=1e-5,
        qk_norm=True,
        layer={"norms": norms},
    )
    return spec if window is None else spec.with_attention(_turned_in_windows)


def _turned_in_windows(plan: AttentionPlan) -> AttentionPlan:
    return replace(plan, rope=None) if plan.window is None else plan


FAMILY = Family(
    name="exaone4",
    architectures=("Exaone4ForCausalLM",),
    read=read,
    unsaid=sizes(102_400, 4096, 16_384, 32, 32, 2048),
    gguf="exaone4",
    gguf_windows=True,
    gguf_words=lambda fields, config: {"sliding_window": None},  # unless the file says one
)
