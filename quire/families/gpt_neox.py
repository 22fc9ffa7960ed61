"""GPT-NeoX and Pythia: LayerNorm, both branches side by side with a norm each, rope on a part of
each head, q, k and v stored in one matrix, head by head. No torch."""

from __future__ import annotations

from typing import Any

from quire.families.family import Family, LayerNames, ModelNames, Name, sizes
from quire.families.fields import Fields
from quire.families.reading import read_biases, read_heads, read_plain_decoder
from quire.families.rope_config import read_rope
from quire.layer_plan import Activation, MlpPlan, NormPlan
from quire.spec import ModelSpec

ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_fast": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}


def read(fields: Fields) -> ModelSpec:
    heads = read_heads(fields)
    parallel = fields.flag("use_parallel_residual", True)
    activation = ACTIVATIONS[fields.word("hidden_act", "gelu")]
    own = fields.under({"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"})
    rope = read_rope(own, heads.head_dim, partial=True, factor=0.25)
    return read_plain_decoder(
        fields,
        heads,
        rope=rope,
        norm=NormPlan(fields.positive("layer_norm_eps", 1e-5), kind="layer", bias=True),
        mlp=MlpPlan(fields.count("intermediate_size"), activation, gated=False, bias=True),
        **read_biases(fields, unsaid=True),
        layer={"norms": "parallel_two" if parallel else "before"},
    )


def _gguf_words(fields: Fields, config: dict[str, Any]) -> dict[str, Any]:
    return {"use_parallel_residual": fields.flag("gptneox.use_parallel_residual", True)}


FAMILY = Family(
    name="gpt_neox",
    architectures=("GPTNeoXForCausalLM",),
    read=read,
    unsaid=sizes(50_432, 6144, 24_576, 44, 64, 2048),
    gguf="gptneox",
    gguf_words=_gguf_words,
    gguf_reads=("use_parallel_residual",),
    partial_rotary=True,
    outer_names=ModelNames(
        layer=Name("gpt_neox.layers.{}", "blk.{}"),
        embed=Name("gpt_neox.embed_in", "token_embd"),
        norm=Name("gpt_neox.final_layer_norm", "output_norm"),
        head=Name("embed_out", "output", hf_also="lm_head"),
    ),
    names=LayerNames(
        qkv=(Name("attention.query_key_value", "attn_qkv"),),
        qkv_by_group=True,
        o=Name("attention.dense", "attn_output"),
        up=Name("mlp.dense_h_to_4h", "ffn_up"),
        down=Name("mlp.dense_4h_to_h", "ffn_down"),
    ),
    buffers=("attention.bias", "attention.masked_bias"),
    without_effect={
        **dict.fromkeys(("hidden_dropout", "classifier_dropout"), "training"),
        "is_decoder": "quire always runs it as one",
    },
    only={"hidden_act": tuple(ACTIVATIONS)},
)
