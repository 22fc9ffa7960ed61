"""GPT-2: learned positions, LayerNorm, a gelu feed-forward without gate, biases; matrices are
stored transposed, [in, out]. No torch."""

from __future__ import annotations

from typing import Any

from quire.families.family import Family, LayerNames, ModelNames, Name
from quire.families.fields import Fields
from quire.families.reading import read_decoder_with_table
from quire.layer_plan import Activation, MlpPlan
from quire.spec import ModelSpec

# The usual names of keys, and this family's.
WORDS = {
    "hidden_size": "n_embd",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
    "max_position_embeddings": "n_positions",
}
ACTIVATIONS: dict[str, Activation] = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
}


def read(fields: Fields) -> ModelSpec:
    said = fields.under(WORDS, max_position_embeddings=1024)
    width = fields.count("n_inner", 4 * said.count("hidden_size"))
    activation = ACTIVATIONS[fields.word("activation_function", "gelu_new")]
    unscaled: dict[str, Any] = {} if fields.flag("scale_attn_weights", True) else {"scale": 1.0}
    return read_decoder_with_table(
        said,
        max_len=said.count("max_position_embeddings"),
        mlp=MlpPlan(width, activation, gated=False, bias=True),
        norm_eps=fields.positive("layer_norm_epsilon", 1e-5),
        qkv_bias=True,
        o_bias=True,
        **unscaled,
    )


FAMILY = Family(
    name="gpt2",
    architectures=("GPT2LMHeadModel",),
    read=read,
    unsaid={"vocab_size": 50_257, "n_embd": 768, "n_layer": 12, "n_head": 12},
    gguf="gpt2",
    gguf_words=lambda fields, config: {
        **{own: config[word] for word, own in WORDS.items()},
        "n_inner": config["intermediate_size"],
    },
    outer_names=ModelNames(
        layer=Name("transformer.h.{}", "blk.{}"),
        embed=Name("transformer.wte", "token_embd"),
        positions=Name("transformer.wpe", "position_embd"),
        norm=Name("transformer.ln_f", "output_norm"),
    ),
    names=LayerNames(
        attn_norm=Name("ln_1", "attn_norm"),
        qkv=(Name("attn.c_attn", "attn_qkv", transposed=True),),
        o=Name("attn.c_proj", "attn_output", transposed=True),
        mlp_norm=Name("ln_2", "ffn_norm"),
        up=Name("mlp.c_fc", "ffn_up", transposed=True),
        down=Name("mlp.c_proj", "ffn_down", transposed=True),
    ),
    buffers=("attn.bias", "attn.masked_bias"),
    without_effect={
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), "training"),
        **dict.fromkeys(("summary_type", "summary_use_proj", "summary_activation"), "another head"),
        **dict.fromkeys(("summary_proj_to_labels", "summary_first_dropout"), "another head"),
        "reorder_and_upcast_attn": "how 16 bits are rounded; quire's sums are in 32",
    },
    only={
        "activation_function": tuple(ACTIVATIONS),
        "scale_attn_by_inverse_layer_idx": (False,),
        "add_cross_attention": (False,),
    },
)
