"""ModernBERT: norms before, rotary positions with two thetas, two of three layers with a window,
gated feed-forward. No torch."""

from __future__ import annotations

from typing import Any

from quire.errors import UnsupportedModel
from quire.families.encoders.family import (
    Dense,
    EncoderFamily,
    EncoderNames,
    HeadPart,
    LayerNorm,
    inner_activation,
    read_activation,
    read_encoder,
)
from quire.families.fields import Fields
from quire.families.reading import num_layers, windows_by_kind
from quire.spec import EncoderSpec

THETAS = {"full_attention": 160_000.0, "sliding_attention": 10_000.0}
OLDER_NAMES = {"full_attention": "global_rope_theta", "sliding_attention": "local_rope_theta"}


def read(fields: Fields) -> EncoderSpec:
    # A window of 128 is 64 on each side, and the token itself.
    window = fields.count("local_attention", 128) // 2
    windows = windows_by_kind(fields, window)
    if windows is None:
        every = fields.count("global_attn_every_n_layers", 3)
        windows = tuple(window if i % every else None for i in range(num_layers(fields)))
    kinds = ["full_attention" if one is None else "sliding_attention" for one in windows]
    return read_encoder(
        fields,
        max_model_len=fields.count("max_position_embeddings", 8192),
        norm_eps=_eps(fields),
        activation=inner_activation(fields, "hidden_activation"),
        gated=True,
        norms="before",
        norm_bias=fields.flag("norm_bias", False),
        attention_bias=fields.flag("attention_bias", False),
        mlp_bias=fields.flag("mlp_bias", False),
        thetas=tuple(_theta(fields, kind) for kind in kinds),
        windows=windows,
    )


def _eps(fields: Fields) -> float:
    return fields.positive("norm_eps", 1e-5)


def _theta(fields: Fields, kind: str) -> float:
    if fields.values.get("rope_scaling"):
        raise UnsupportedModel(f"{fields.source}: rope_scaling; quire has plain rotary positions")
    given = fields.inner("rope_parameters").inner(kind)
    if given.word("rope_type", "default") != "default":
        raise UnsupportedModel(
            f"{given.source}: rope_type {given.word('rope_type')[:40]!r}; quire has 'default'"
        )
    older = OLDER_NAMES[kind]
    unsaid = THETAS[kind] if fields.values.get(older) is None else fields.positive(older)
    return given.positive("rope_theta", unsaid)


def classifier(fields: Fields, per_token: bool) -> tuple[HeadPart, ...]:
    inner: Any = read_activation(fields, "classifier_activation", "gelu")
    return Dense("head.dense", inner), LayerNorm("head.norm", _eps(fields)), Dense("classifier")


FAMILY = EncoderFamily(
    name="modernbert",
    stems=("ModernBert",),
    model_types=("modernbert",),
    prefix="model.",
    read=read,
    names=EncoderNames(
        words="embeddings.tok_embeddings",
        embed_norm="embeddings.norm",
        layer="layers.{}.",
        qkv=("attn.Wqkv",),
        o="attn.Wo",
        attn_norm="attn_norm",
        up=("mlp.Wi",),
        down="mlp.Wo",
        mlp_norm="mlp_norm",
        norm="final_norm",
    ),
    classifier=classifier,
    label_pooling={"cls": "cls", "mean": "mean"},
    without_effect={
        "initializer_cutoff_factor": "training",
        "attention_dropout": "training",
        "embedding_dropout": "training",
        "mlp_dropout": "training",
        "classifier_dropout": "training",
        "decoder_bias": "the head that guesses words, which is not built",
        "classifier_bias": "seen from what is stored",
        "cls_token_id": "the tokenizer's",
        "sep_token_id": "the tokenizer's",
        "deterministic_flash_attn": "always so",
        "sparse_prediction": "training",
        "sparse_pred_ignore_index": "training",
        "reference_compile": "how Transformers computes",
        "repad_logits_with_grad": "training",
    },
)
