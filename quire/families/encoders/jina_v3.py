"""The third Jina model: XLM-RoBERTa with rotary positions, without its adapters. No torch."""

from __future__ import annotations

from dataclasses import replace

from quire.families.encoders import bert, roberta
from quire.families.encoders.family import (
    EncoderFamily,
    EncoderNames,
    inner_activation,
    plain_theta,
    read_encoder,
)
from quire.families.fields import Fields
from quire.spec import EncoderSpec


def read(fields: Fields) -> EncoderSpec:
    spec = read_encoder(
        "jina_v3",
        fields,
        max_model_len=fields.count("max_position_embeddings"),
        num_types=fields.count("type_vocab_size", 1),
        norm_eps=fields.positive("layer_norm_eps", 1e-5),
        activation=inner_activation(fields, "hidden_act"),
    )
    theta = plain_theta(fields, spec.head_dim, 20_000.0)
    return replace(spec, thetas=(theta,) * spec.num_layers)


FAMILY = EncoderFamily(
    name="jina_v3",
    stems=("JinaEmbeddingsV3",),
    model_types=("jina_embeddings_v3",),
    prefix="roberta.",
    read=read,
    names=EncoderNames(
        words="embeddings.word_embeddings",
        types="embeddings.token_type_embeddings",
        embed_norm="emb_ln",
        layer="encoder.layers.{}.",
        qkv=("mixer.Wqkv",),
        o="mixer.out_proj",
        attn_norm="norm1",
        up=("mlp.fc1",),
        down="mlp.fc2",
        mlp_norm="norm2",
    ),
    classifier=roberta.FAMILY.classifier,
    without_effect=bert.WITHOUT_EFFECT,
)
