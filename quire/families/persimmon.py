"""Persimmon: LayerNorms, of each head of q and k too, rope on half of each head, q, k and v stored
head by head, a feed-forward of squared relu without gate, and biases but for logits. No torch."""

from __future__ import annotations

from quire.families.family import Family, LayerNames, ModelNames, Name, sizes
from quire.families.fields import Fields
from quire.families.reading import Heads, read_heads, read_plain_decoder
from quire.families.rope_config import read_rope
from quire.layer_plan import Activation, MlpPlan, NormPlan
from quire.spec import ModelSpec

ACTIVATIONS: dict[str, Activation] = {
    "relu2": "relu2",
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}


def read(fields: Fields) -> ModelSpec:
    plain, width = read_heads(fields), fields.count("intermediate_size")
    heads = Heads(plain.heads, plain.heads, plain.head_dim)
    activation = ACTIVATIONS[fields.word("hidden_act", "relu2")]
    return read_plain_decoder(
        fields,
        heads,
        rope=read_rope(fields, heads.head_dim, partial=True, factor=0.5),
        norm=NormPlan(fields.positive("layer_norm_eps", 1e-5), kind="layer", bias=True),
        qk_norm=fields.flag("qk_layernorm", True),
        mlp=MlpPlan(width, activation, gated=False, bias=True),
        qkv_bias=True,
        o_bias=True,
    )


FAMILY = Family(
    name="persimmon",
    architectures=("PersimmonForCausalLM",),
    read=read,
    unsaid=sizes(262_144, 4096, 16_384, 36, 64, 16_384),
    partial_rotary=True,
    outer_names=ModelNames(norm=Name("model.final_layernorm", "output_norm")),
    names=LayerNames(
        qkv=(Name("self_attn.query_key_value", "attn_qkv"),),
        qkv_by_group=True,
        q_norm=Name("self_attn.q_layernorm", "attn_q_norm"),
        k_norm=Name("self_attn.k_layernorm", "attn_k_norm"),
        o=Name("self_attn.dense", "attn_output"),
        up=Name("mlp.dense_h_to_4h", "ffn_up"),
        down=Name("mlp.dense_4h_to_h", "ffn_down"),
    ),
    without_effect={"hidden_dropout": "training"},
    only={"hidden_act": tuple(ACTIVATIONS)},
)
