"""The families of encoders, and which of them a config names. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.errors import UnsupportedModel
from quire.families.encoders import (
    bert,
    distilbert,
    electra,
    embeddinggemma,
    eurobert,
    gte,
    jina_bert,
    jina_v3,
    modernbert,
    mpnet,
    nomic_bert,
    roberta,
)
from quire.families.encoders.family import EncoderFamily
from quire.families.fields import Fields
from quire.spec import EncoderSpec

FAMILIES: tuple[EncoderFamily, ...] = (
    bert.FAMILY,
    roberta.FAMILY,
    distilbert.FAMILY,
    modernbert.FAMILY,
    nomic_bert.FAMILY,
    embeddinggemma.FAMILY,
    jina_bert.FAMILY,
    jina_v3.FAMILY,
    gte.FAMILY,
    mpnet.FAMILY,
    electra.FAMILY,
    eurobert.FAMILY,
)
BY_MODEL_TYPE = {name: family for family in FAMILIES for name in family.model_types}
# Endings of architectures after the stem. A head that predicts masked words is not used.
ENDINGS = (
    "Model",
    "ForMaskedLM",
    "ForPreTraining",
    "ForSequenceClassification",
    "ForTokenClassification",
)
ARCHITECTURES = {
    f"{stem}{ending}": family for family in FAMILIES for stem in family.stems for ending in ENDINGS
}
# Keys that do not change what an encoder computes here.
WITHOUT_EFFECT = {
    "initializer_range": "training",
    "use_cache": "nothing is generated",
    "chunk_size_feed_forward": "the sums are the same",
    "tie_word_embeddings": "the head that guesses words is not built",
    "bos_token_id": "the tokenizer's",
    "eos_token_id": "the tokenizer's",
    "pad_token_id": "nothing is padded",
    "output_hidden_states": "what a call returns",
    "return_dict": "what a call returns",
    "transformers_version": "who wrote the file",
}


def encoder_family(config: Mapping[str, Any]) -> EncoderFamily | None:
    """The family of the encoder that a config describes; None if it is no encoder."""
    named = config.get("architectures")
    for name in named if isinstance(named, list) else ():
        if isinstance(name, str) and name in ARCHITECTURES:
            return _fitting(ARCHITECTURES[name], config)
        if isinstance(name, str) and name.endswith(("ForCausalLM", "LMHeadModel")):
            return None  # such a model generates text
    kind = config.get("model_type")
    return _fitting(BY_MODEL_TYPE.get(kind) if isinstance(kind, str) else None, config)


def _fitting(family: EncoderFamily | None, config: Mapping[str, Any]) -> EncoderFamily | None:
    """The family, if the config has all values that the family needs."""
    needs = {} if family is None else family.needs
    return family if all(config.get(key) == value for key, value in needs.items()) else None


def encoder_spec(family: EncoderFamily, fields: Fields) -> EncoderSpec:
    """The spec of a config. UnsupportedModel for values that quire cannot compute."""
    named = fields.values.get("architectures") or []
    for name in named if isinstance(named, list) else []:
        if not isinstance(name, str) or ARCHITECTURES.get(name) is not family:
            raise UnsupportedModel(
                f"{fields.source}: {str(name)[:80]} is not supported; of this family quire runs "
                f"{', '.join(known for known, one in ARCHITECTURES.items() if one is family)}"
            )
    fields.check_only(family.only)
    return family.spec(fields)
