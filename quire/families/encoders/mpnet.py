"""MPNet: RoBERTa, with a learned number for the distance of two tokens added to scores. No
torch."""

from __future__ import annotations

from dataclasses import replace

from quire.families.encoders import bert, roberta
from quire.families.encoders.family import EncoderFamily
from quire.families.fields import Fields
from quire.spec import EncoderSpec

DISTANCES = 32  # as in Transformers, which ignores the config here


def read(fields: Fields) -> EncoderSpec:
    # Positions begin after 1, whatever the padding id is.
    spec = roberta.read(Fields({**fields.values, "pad_token_id": 1}, fields.source))
    return replace(spec, num_types=0, num_distances=DISTANCES)


FAMILY = EncoderFamily(
    name="mpnet",
    stems=("MPNet",),
    model_types=("mpnet",),
    prefix="mpnet.",
    read=read,
    names=replace(
        bert.NAMES,
        types="",
        distances="encoder.relative_attention_bias",
        qkv=("attention.attn.q", "attention.attn.k", "attention.attn.v"),
        o="attention.attn.o",
        attn_norm="attention.LayerNorm",
    ),
    classifier=roberta.FAMILY.classifier,
    only={"relative_attention_num_buckets": (DISTANCES,)},
    without_effect=bert.WITHOUT_EFFECT,
)
