"""Youtu-LLM: latent attention in a dense model. No torch."""

from __future__ import annotations

from quire.families.family import Family, sizes
from quire.families.fields import Fields
from quire.families.latents import HEAD_KEYS, read_latent_decoder
from quire.spec import ModelSpec


def read(fields: Fields) -> ModelSpec:
    tied = fields.flag("tie_word_embeddings", True)
    interleaved = fields.flag("rope_interleave", True)
    return read_latent_decoder(fields, interleaved=interleaved, facts={"tied_embeddings": tied})


FAMILY = Family(
    name="youtu",
    architectures=("YoutuForCausalLM",),
    read=read,
    unsaid=sizes(128_256, 2048, 6144, 32, 16, 131_072),
    without_effect={**HEAD_KEYS, "embedding_initializer_range": "training"},
)
