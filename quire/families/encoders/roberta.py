"""RoBERTa, CamemBERT and XLM-RoBERTa: BERT with positions after the padding id. No torch."""

from __future__ import annotations

from quire.errors import CorruptModel
from quire.families.encoders import bert
from quire.families.encoders.family import (
    Dense,
    EncoderFamily,
    inner_activation,
    pooled_classifier,
    read_encoder,
)
from quire.families.fields import Fields
from quire.spec import EncoderSpec


def read(fields: Fields) -> EncoderSpec:
    table, padding = fields.count("max_position_embeddings", 514), fields.values.get("pad_token_id")
    padding = 1 if padding is None else padding
    if isinstance(padding, bool) or not isinstance(padding, int) or not -1 <= padding < table - 1:
        raise CorruptModel(
            f"{fields.source}: pad_token_id {padding!r}; positions begin after it, and there are "
            f"{table} (max_position_embeddings)"
        )
    return read_encoder(
        fields,
        max_model_len=table - padding - 1,
        num_positions=table,
        first_position=padding + 1,
        num_types=fields.count("type_vocab_size", 1),
        norm_eps=fields.positive("layer_norm_eps", 1e-12),
        activation=inner_activation(fields, "hidden_act"),
    )


FAMILY = EncoderFamily(
    name="roberta",
    stems=("Roberta", "XLMRoberta", "Camembert"),
    model_types=("roberta", "xlm-roberta", "camembert"),
    prefix="roberta.",
    read=read,
    names=bert.NAMES,
    classifier=pooled_classifier(Dense("classifier.dense", "tanh"), Dense("classifier.out_proj")),
    only=bert.ONLY,
    without_effect=bert.WITHOUT_EFFECT,
)
