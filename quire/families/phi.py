"""Phi-1, 1.5 and 2: LayerNorm before both branches, rope on half of each head, a feed-forward
without gate, and biases everywhere, also of logits. No torch."""

from __future__ import annotations

from quire.families.family import Family, LayerNames, ModelNames, Name, sizes
from quire.families.fields import Fields
from quire.families.reading import read_heads, read_plain_decoder
from quire.families.rope_config import read_rope
from quire.layer_plan import Activation, MlpPlan, NormPlan
from quire.spec import LogitsPlan, ModelSpec

ACTIVATIONS: dict[str, Activation] = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
}


def read(fields: Fields) -> ModelSpec:
    heads, width = read_heads(fields), fields.count("intermediate_size")
    activation = ACTIVATIONS[fields.word("hidden_act", "gelu_new")]
    return read_plain_decoder(
        fields,
        heads,
        rope=read_rope(fields, heads.head_dim, partial=True, factor=0.5),
        norm=NormPlan(fields.positive("layer_norm_eps", 1e-5), kind="layer", bias=True),
        qk_norm=fields.flag("qk_layernorm", False),
        mlp=MlpPlan(width, activation, gated=False, bias=True),
        qkv_bias=True,
        o_bias=True,
        layer={"norms": "parallel"},
        facts={"logits": LogitsPlan(bias=True)},
    )


FAMILY = Family(
    name="phi",
    architectures=("PhiForCausalLM",),
    read=read,
    unsaid=sizes(51_200, 2048, 8192, 24, 32, 2048),
    gguf="phi2",
    partial_rotary=True,
    outer_names=ModelNames(norm=Name("model.final_layernorm", "output_norm")),
    names=LayerNames(
        q_norm=Name("self_attn.q_layernorm", "attn_q_norm"),
        k_norm=Name("self_attn.k_layernorm", "attn_k_norm"),
        o=Name("self_attn.dense", "attn_output"),
        up=Name("mlp.fc1", "ffn_up"),
        down=Name("mlp.fc2", "ffn_down"),
    ),
    without_effect={"resid_pdrop": "training", "embd_pdrop": "training"},
    only={"hidden_act": tuple(ACTIVATIONS)},
)
