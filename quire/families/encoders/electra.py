"""ELECTRA: BERT under another name, perhaps with narrower embeddings, and with a head of its own.
No torch."""

from __future__ import annotations

from dataclasses import replace

from quire.families.encoders import bert
from quire.families.encoders.family import Dense, EncoderFamily, pooled_classifier
from quire.families.fields import Fields
from quire.spec import EncoderSpec


def read(fields: Fields) -> EncoderSpec:
    spec, width = bert.read(fields), fields.count("embedding_size", 128)
    return spec if width == spec.hidden_size else replace(spec, embedding_width=width)


FAMILY = EncoderFamily(
    name="electra",
    stems=("Electra",),
    model_types=("electra",),
    prefix="electra.",
    read=read,
    names=replace(bert.NAMES, embed_product="embeddings_project"),
    classifier=pooled_classifier(Dense("classifier.dense", "gelu"), Dense("classifier.out_proj")),
    only=bert.ONLY,
    without_effect={
        **bert.WITHOUT_EFFECT,
        **dict.fromkeys(
            ("summary_type", "summary_use_proj", "summary_activation", "summary_last_dropout"),
            "a head for several choices, which is not built",
        ),
    },
)
