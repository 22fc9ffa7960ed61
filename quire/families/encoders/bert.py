"""BERT: learned positions and token types, norms after attention and feed-forward. No torch."""

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

NAMES = EncoderNames(
    words="embeddings.word_embeddings",
    positions="embeddings.position_embeddings",
    types="embeddings.token_type_embeddings",
    embed_norm="embeddings.LayerNorm",
    layer="encoder.layer.{}.",
    qkv=("attention.self.query", "attention.self.key", "attention.self.value"),
    o="attention.output.dense",
    attn_norm="attention.output.LayerNorm",
    up=("intermediate.dense",),
    down="output.dense",
    mlp_norm="output.LayerNorm",
)
ONLY = {
    "position_embedding_type": ("absolute",),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
}
WITHOUT_EFFECT = {
    "hidden_dropout_prob": "training",
    "attention_probs_dropout_prob": "training",
    "classifier_dropout": "training",
}


def read(fields: Fields) -> EncoderSpec:
    length = fields.count("max_position_embeddings", 512)
    return read_encoder(
        fields,
        max_model_len=length,
        num_positions=length,
        num_types=fields.count("type_vocab_size", 2),
        norm_eps=fields.positive("layer_norm_eps", 1e-12),
        activation=inner_activation(fields, "hidden_act"),
    )


FAMILY = EncoderFamily(
    name="bert",
    stems=("Bert",),
    model_types=("bert",),
    prefix="bert.",
    read=read,
    names=NAMES,
    classifier=pooled_classifier(Dense("bert.pooler.dense", "tanh"), Dense("classifier")),
    only=ONLY,
    without_effect=WITHOUT_EFFECT,
)
