"""CWM: a window in three of four layers, all but the first of them, and slow frequencies of rope
divided. No torch."""

from __future__ import annotations

from typing import Any

from quire.families.family import Family, sizes
from quire.families.fields import Fields
from quire.families.reading import (
    num_layers,
    read_heads,
    read_plain_decoder,
    read_window,
    windows_by_kind,
)
from quire.families.rope_config import read_rope
from quire.spec import ModelSpec

PERIOD = 4  # one layer in each period has no window: its first
# Used if a config has no rope settings.
ROPE: dict[str, Any] = {
    "rope_type": "llama3",
    "rope_theta": 1_000_000.0,
    "factor": 16.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def read(fields: Fields) -> ModelSpec:
    said = fields.values.get("rope_scaling") or fields.values.get("rope_parameters")
    fields = fields if said else fields.under({}, rope_parameters=ROPE)
    heads, window = read_heads(fields, kv_heads=8, head_dim=128), _window(fields)
    usual = tuple(window if i % PERIOD else None for i in range(num_layers(fields)))
    return read_plain_decoder(
        fields,
        heads,
        rope=read_rope(fields, heads.head_dim, theta=ROPE["rope_theta"]),
        windows=windows_by_kind(fields, window) or usual,
        norm_eps=1e-5,
        mlp_bias=fields.flag("mlp_bias", False),
        facts={"eos_ids": fields.ids("eos_token_id") or (128_001, 128_008, 128_009)},
    )


def _window(fields: Fields) -> int | None:
    """0 means none, too."""
    return None if fields.values.get("sliding_window") == 0 else read_window(fields, unsaid=8192)


FAMILY = Family(
    name="cwm",
    architectures=("CwmForCausalLM",),
    read=read,
    unsaid=sizes(128_256, 6144, 21_504, 64, 48, 131_072),
)
