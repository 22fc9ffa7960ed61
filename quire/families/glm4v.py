"""The text model of GLM-4.1V: Glm4 with positions of three coordinates. No torch."""

from __future__ import annotations

from functools import partial

from quire.families import glm4
from quire.families.axes import read_with_axes
from quire.families.family import Family, sizes
from quire.families.fields import Fields
from quire.families.reading import read_heads, read_plain_decoder, with_pairs_side_by_side
from quire.families.rope_config import read_rope
from quire.spec import ModelSpec

SECTIONS = (8, 12, 12)  # pairs that time, height and width rotate


def read_text(fields: Fields, *, kv_heads: int = 2, biased: bool = True) -> ModelSpec:
    """`kv_heads`: their default. `biased`: whether q, k and v have biases."""
    heads = read_heads(fields, kv_heads=kv_heads)
    spec = read_plain_decoder(
        fields,
        heads,
        rope=read_rope(fields, heads.head_dim, partial=True),
        norm_eps=1e-5,
        qkv_bias=biased,
        layer={"norms": "both"},
    )
    return with_pairs_side_by_side(spec)


FAMILY = Family(
    name="glm4v",
    # The second stands for either text; the config of the text says which.
    architectures=("Glm4vForConditionalGeneration", "Glm46VForConditionalGeneration"),
    model_types=("glm4v", "glm4v_text", "glm46v"),
    read=partial(read_with_axes, read=read_text, unsaid=SECTIONS, interleaved=False),
    unsaid=sizes(151_552, 4096, 13_696, 40, 32, 32_768),
    partial_rotary=True,
    names=glm4.FAMILY.names,
    only={"attention_bias": (True,)},  # of q, k and v alone, whatever a config says
)
