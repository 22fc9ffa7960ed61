"""GPT-BigCode (SantaCoder, StarCoder): GPT-2 with one KV head, or q, k and v head by head. No
torch."""

from __future__ import annotations

from typing import Any

from quire.families import gpt2
from quire.families.family import Family, LayerNames, Name
from quire.families.fields import Fields
from quire.families.reading import read_decoder_with_table
from quire.layer_plan import MlpPlan
from quire.spec import ModelSpec


def read(fields: Fields) -> ModelSpec:
    said = fields.under(gpt2.WORDS, max_position_embeddings=1024)
    width = fields.count("n_inner", 4 * said.count("hidden_size"))
    activation = gpt2.ACTIVATIONS[fields.word("activation_function", "gelu_pytorch_tanh")]
    own: dict[str, Any] = {"num_kv_heads": 1} if fields.flag("multi_query", True) else {}
    if not fields.flag("scale_attn_weights", True):
        own["scale"] = 1.0
    return read_decoder_with_table(
        said,
        max_len=said.count("max_position_embeddings"),
        mlp=MlpPlan(width, activation, gated=False, bias=True),
        norm_eps=fields.positive("layer_norm_epsilon", 1e-5),
        qkv_bias=True,
        o_bias=True,
        **own,
    )


def _gguf_words(fields: Fields, config: dict[str, Any]) -> dict[str, Any]:
    return {
        **{own: config[word] for word, own in gpt2.WORDS.items()},
        "n_inner": config["intermediate_size"],
        "multi_query": config["num_key_value_heads"] == 1,
    }


FAMILY = Family(
    name="gpt_bigcode",
    architectures=("GPTBigCodeForCausalLM",),
    read=read,
    unsaid=gpt2.FAMILY.unsaid,
    gguf="starcoder",
    gguf_words=_gguf_words,
    outer_names=gpt2.FAMILY.outer_names,
    names=LayerNames(
        attn_norm=Name("ln_1", "attn_norm"),
        qkv=(Name("attn.c_attn", "attn_qkv"),),
        qkv_by_group=True,
        o=Name("attn.c_proj", "attn_output"),
        mlp_norm=Name("ln_2", "ffn_norm"),
        up=Name("mlp.c_fc", "ffn_up"),
        down=Name("mlp.c_proj", "ffn_down"),
    ),
    buffers=("attn.bias", "attn.masked_bias"),
    without_effect={
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), "training"),
        **dict.fromkeys(
            ("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32"),
            "how 16 bits are rounded; quire's sums are in 32",
        ),
    },
    only={"activation_function": tuple(gpt2.ACTIVATIONS), "add_cross_attention": (False,)},
)
