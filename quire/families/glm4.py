"""Glm4: rope on half of each head, with interleaved pairs; norms before and after. No torch."""

from __future__ import annotations

from functools import partial

from quire.families.family import Family, LayerNames, Name, sizes
from quire.families.reading import read_half_turned

FAMILY = Family(
    name="glm4",
    architectures=("Glm4ForCausalLM",),
    read=partial(read_half_turned, norms="both"),
    unsaid=sizes(151_552, 4096, 13_696, 40, 32, 131_072),
    gguf="glm4",
    partial_rotary=True,
    names=LayerNames(
        attn_post_norm=Name("post_self_attn_layernorm", "post_attention_norm"),
        mlp_post_norm=Name("post_mlp_layernorm", "post_ffw_norm"),
        gate_up=(Name("mlp.gate_up_proj", "ffn_up"),),
    ),
)
