"""Falcon: LayerNorm, both branches side by side, q, k and v stored in one matrix, by KV head.
Falcon 7B has a single KV head; newer models have more, and a norm for each branch. No torch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from quire.families.family import Family, LayerNames, ModelNames, Name, sizes
from quire.families.fields import Fields
from quire.families.reading import Heads, read_heads, read_plain_decoder
from quire.families.rope_config import read_rope
from quire.layer_plan import Activation, MlpPlan, NormPlaces, NormPlan
from quire.spec import ModelSpec

ACTIVATIONS: dict[str, Activation] = {"gelu": "gelu", "relu": "relu"}


def read(fields: Fields) -> ModelSpec:
    heads, biased = _heads(fields), fields.flag("bias", False)
    width = fields.count("ffn_hidden_size", 4 * fields.count("hidden_size"))
    activation = ACTIVATIONS[fields.word("activation", "gelu")]
    return read_plain_decoder(
        fields,
        heads,
        rope=read_rope(fields, heads.head_dim),
        norm=NormPlan(fields.positive("layer_norm_epsilon", 1e-5), kind="layer", bias=True),
        mlp=MlpPlan(width, activation, gated=False, bias=biased),
        qkv_bias=biased,
        o_bias=biased,
        layer={"norms": _norms(fields)},
        facts={"tied_embeddings": fields.flag("tie_word_embeddings", True)},
    )


def _heads(fields: Fields) -> Heads:
    plain = read_heads(fields)
    if fields.flag("new_decoder_architecture", False):
        kv_heads = fields.count("num_kv_heads", plain.heads)
        if plain.heads % kv_heads:
            raise fields.wrong("num_kv_heads", f"a divisor of the {plain.heads} heads")
        return Heads(plain.heads, kv_heads, plain.head_dim)
    kv_heads = 1 if fields.flag("multi_query", True) else plain.heads
    return Heads(plain.heads, kv_heads, plain.head_dim)


def _norms(fields: Fields) -> NormPlaces:
    """Newer models have a norm for each branch unless the config says one."""
    newer = fields.flag("new_decoder_architecture", False)
    if not fields.flag("parallel_attn", True):
        if newer:
            raise fields.unsupported("parallel_attn", "true where new_decoder_architecture is")
        return "before"
    count = fields.count("num_ln_in_parallel_attn", 2 if newer else 1, most=2)
    if count == 2 and not newer:
        raise fields.unsupported("num_ln_in_parallel_attn", "1 unless new_decoder_architecture")
    return "parallel_two" if count == 2 else "parallel"


def _gguf_words(fields: Fields, config: dict[str, Any]) -> dict[str, Any]:
    """A newer model is recognised by its number of KV heads."""
    kv_heads = config["num_key_value_heads"]
    return {
        "new_decoder_architecture": kv_heads != 1,
        "num_kv_heads": kv_heads,
        "ffn_hidden_size": config["intermediate_size"],
    }


NAMES = LayerNames(
    qkv=(Name("self_attention.query_key_value", "attn_qkv"),),
    qkv_by_group=True,
    o=Name("self_attention.dense", "attn_output"),
    up=Name("mlp.dense_h_to_4h", "ffn_up"),
    down=Name("mlp.dense_4h_to_h", "ffn_down"),
)
FAMILY = Family(
    name="falcon",
    architectures=("FalconForCausalLM",),
    read=read,
    unsaid=sizes(65_024, 4544, 0, 32, 71, 2048),
    gguf="falcon",
    gguf_words=_gguf_words,
    outer_names=ModelNames(
        layer=Name("transformer.h.{}", "blk.{}"),
        embed=Name("transformer.word_embeddings", "token_embd"),
        norm=Name("transformer.ln_f", "output_norm"),
    ),
    names=NAMES,
    names_by_norms={
        "parallel_two": replace(
            NAMES, attn_norm=Name("ln_attn", "attn_norm_2"), mlp_norm=Name("ln_mlp", "attn_norm")
        )
    },
    without_effect={"hidden_dropout": "training"},
    # Models with alibi have no rope; quire does not compute them.
    only={"activation": tuple(ACTIVATIONS), "alibi": (False,)},
)
