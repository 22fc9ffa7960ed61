"""Helium: interleaved pairs in rope, and norms that are rounded after their weight. No torch."""

from __future__ import annotations

from quire.families.family import Family, sizes
from quire.families.fields import Fields
from quire.families.reading import read_heads, read_plain_decoder, with_pairs_side_by_side
from quire.families.rope_config import read_rope
from quire.layer_plan import NormPlan
from quire.spec import ModelSpec


def read(fields: Fields) -> ModelSpec:
    heads = read_heads(fields, kv_heads=20, head_dim=128)
    spec = read_plain_decoder(
        fields,
        heads,
        rope=read_rope(fields, heads.head_dim, theta=100_000.0),
        norm=NormPlan(fields.positive("rms_norm_eps", 1e-8), rounds_last=True),
        qkv_bias=fields.flag("attention_bias", False),
        mlp_bias=fields.flag("mlp_bias", False),
    )
    return with_pairs_side_by_side(spec)


FAMILY = Family(
    name="helium",
    architectures=("HeliumForCausalLM",),
    read=read,
    unsaid=sizes(48_000, 2560, 7040, 24, 20, 4096),
)
