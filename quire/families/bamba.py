"""Bamba: layers of Mamba-2, and some with attention and rope on half of each head. No torch."""

from __future__ import annotations

from quire.families.family import Family, LayerNames, ModelNames, Name, sizes
from quire.families.fields import Fields
from quire.families.hybrids import ATTENDS, KEEPS_STATE
from quire.families.mamba import ONLY, WITHOUT_EFFECT, names_of, with_states
from quire.families.reading import read_biases, read_heads, read_plain_decoder
from quire.families.rope_config import read_rope
from quire.spec import ModelSpec


def read(fields: Fields) -> ModelSpec:
    heads = read_heads(fields, kv_heads=8)
    spec = read_plain_decoder(
        fields,
        heads,
        rope=read_rope(fields, heads.head_dim, partial=True, factor=0.5),
        norm_eps=1e-5,
        mlp_bias=fields.flag("mlp_bias", False),
        **read_biases(fields),
    )
    attending = fields.values.get("attn_layer_indices") or []
    if not isinstance(attending, list):
        raise fields.wrong("attn_layer_indices", "a list of layers")
    kinds = [ATTENDS if i in attending else KEEPS_STATE for i in range(spec.num_layers)]
    return with_states(spec, fields, kinds)


FAMILY = Family(
    name="bamba",
    architectures=("BambaForCausalLM",),
    read=read,
    unsaid=sizes(128_000, 4096, 14_336, 32, 32, 262_144),
    partial_rotary=True,
    names=LayerNames(
        **names_of("mamba"),
        mlp_norm=Name("pre_ff_layernorm", "ffn_norm"),
        gate_up=(
            Name("feed_forward.gate_proj", "ffn_gate"),
            Name("feed_forward.up_proj", "ffn_up"),
        ),
        down=Name("feed_forward.down_proj", "ffn_down"),
    ),
    outer_names=ModelNames(norm=Name("model.final_layernorm", "output_norm")),
    without_effect={
        **WITHOUT_EFFECT,
        "num_logits_to_keep": "what a call returns",
        "z_loss_coefficient": "training",
    },
    only=ONLY,
)
