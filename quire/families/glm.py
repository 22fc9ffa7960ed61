"""GLM: half of each head turned, in pairs side by side; gate and up in one matrix. No torch."""

from __future__ import annotations

from quire.families.family import Family, LayerNames, Name
from quire.families.fields import Fields
from quire.families.reading import read_heads, read_plain_decoder, with_pairs_side_by_side
from quire.families.rope_config import read_rope
from quire.spec import ModelSpec

END_IDS = (151329, 151336, 151338)  # of a config that names none


def read(fields: Fields) -> ModelSpec:
    heads = read_heads(fields, kv_heads=2, head_dim=128)
    spec = read_plain_decoder(
        "glm",
        fields,
        heads,
        rope=read_rope(fields, heads.head_dim, partial=True, factor=0.5),
        norm_eps=1.5625e-07,
        qkv_bias=fields.flag("attention_bias", True),
        facts={"eos_ids": fields.ids("eos_token_id") or END_IDS},
    )
    return with_pairs_side_by_side(spec)


FAMILY = Family(
    name="glm",
    architectures=("GlmForCausalLM",),
    model_types=("glm",),
    read=read,
    partial_rotary=True,
    names=LayerNames(gate_up=(Name("mlp.gate_up_proj", "ffn_up"),)),
)
