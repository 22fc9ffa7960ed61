"""DistilBERT: BERT without token types, under its own names. No torch."""

from __future__ import annotations

from quire.families.encoders.family import (
    Dense,
    EncoderFamily,
    EncoderNames,
    inner_activation,
    pooled_classifier,
    read_encoder,
)
from quire.families.fields import Fields
from quire.spec import EncoderSpec


def read(fields: Fields) -> EncoderSpec:
    length = fields.count("max_position_embeddings", 512)
    return read_encoder(
        fields,
        keys={
            "vocab_size": "vocab_size",
            "hidden_size": "dim",
            "intermediate_size": "hidden_dim",
            "num_layers": "n_layers",
            "num_heads": "n_heads",
        },
        max_model_len=length,
        num_positions=length,
        norm_eps=1e-12,
        activation=inner_activation(fields, "activation"),
    )


FAMILY = EncoderFamily(
    name="distilbert",
    stems=("DistilBert",),
    model_types=("distilbert",),
    prefix="distilbert.",
    read=read,
    names=EncoderNames(
        words="embeddings.word_embeddings",
        positions="embeddings.position_embeddings",
        embed_norm="embeddings.LayerNorm",
        layer="transformer.layer.{}.",
        qkv=("attention.q_lin", "attention.k_lin", "attention.v_lin"),
        o="attention.out_lin",
        attn_norm="sa_layer_norm",
        up=("ffn.lin1",),
        down="ffn.lin2",
        mlp_norm="output_layer_norm",
    ),
    classifier=pooled_classifier(Dense("pre_classifier", "relu"), Dense("classifier")),
    without_effect={
        "sinusoidal_pos_embds": "how the stored positions were made",
        "dropout": "training",
        "attention_dropout": "training",
        "qa_dropout": "training",
        "seq_classif_dropout": "training",
    },
)
