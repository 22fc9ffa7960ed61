"""Jina embeddings v3: XLM-RoBERTa with rotary positions, without its adapters. No torch."""

from __future__ import annotations

from dataclasses import replace

from quire.families.encoders import bert, nomic_bert, roberta
from quire.families.encoders.family import (
    EncoderFamily,
    inner_activation,
    read_encoder,
    with_rope,
)
from quire.families.fields import Fields
from quire.spec import EncoderSpec


def read(fields: Fields) -> EncoderSpec:
    spec = read_encoder(
        fields,
        max_model_len=fields.count("max_position_embeddings"),
        num_types=fields.count("type_vocab_size", 1),
        norm_eps=fields.positive("layer_norm_eps", 1e-5),
        activation=inner_activation(fields, "hidden_act"),
    )
    return with_rope(spec, fields, unsaid_theta=20_000.0)


FAMILY = EncoderFamily(
    name="jina_v3",
    stems=("JinaEmbeddingsV3",),
    model_types=("jina_embeddings_v3",),
    prefix="roberta.",
    read=read,
    names=replace(nomic_bert.NAMES, qkv=("mixer.Wqkv",), o="mixer.out_proj", up=("mlp.fc1",)),
    classifier=roberta.FAMILY.classifier,
    without_effect=bert.WITHOUT_EFFECT,
)
