"""JinaBERT v2: BERT without positions, with scores that fall with the distance of two tokens
(ALiBi) and a gated feed-forward. No torch."""

from __future__ import annotations

from dataclasses import replace

from quire.families.encoders import bert
from quire.families.encoders.family import EncoderFamily, inner_activation, read_encoder
from quire.families.fields import Fields
from quire.spec import EncoderSpec


def read(fields: Fields) -> EncoderSpec:
    return read_encoder(
        fields,
        max_model_len=fields.count("max_position_embeddings", 8192),
        num_types=fields.count("type_vocab_size", 2),
        norm_eps=fields.positive("layer_norm_eps", 1e-12),
        activation=inner_activation(fields, "hidden_act"),
        gated=True,
        up_bias=False,
        alibi=True,
    )


FAMILY = EncoderFamily(
    name="jina_bert",
    stems=("JinaBert",),
    model_types=(),  # its configs say "bert"
    prefix="bert.",
    read=read,
    names=replace(
        bert.NAMES,
        positions="",
        up=("mlp.gated_layers",),
        down="mlp.wo",
        mlp_norm="mlp.layernorm",
    ),
    classifier=bert.FAMILY.classifier,
    only={
        **bert.ONLY,
        "position_embedding_type": ("alibi",),
        "feed_forward_type": ("geglu",),
        "hidden_act": ("gelu",),
    },
    needs={"position_embedding_type": "alibi"},
    without_effect={
        **bert.WITHOUT_EFFECT,
        "attn_implementation": "how Transformers computes",
        "emb_pooler": "how its own code embeds",
        "model_max_length": "the tokenizer's",
    },
)
