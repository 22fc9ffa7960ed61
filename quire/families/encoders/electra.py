"""ELECTRA: BERT under another name, with a head of its own. No torch."""

from __future__ import annotations

from quire.families.encoders import bert
from quire.families.encoders.family import Dense, EncoderFamily, pooled_classifier
from quire.families.fields import Fields
from quire.spec import EncoderSpec


def read(fields: Fields) -> EncoderSpec:
    spec = bert.read(fields)
    if fields.count("embedding_size", 128) != spec.hidden_size:
        raise fields.unsupported("embedding_size", f"hidden_size, {spec.hidden_size}")
    return spec


FAMILY = EncoderFamily(
    name="electra",
    stems=("Electra",),
    model_types=("electra",),
    prefix="electra.",
    read=read,
    names=bert.NAMES,
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
