"""Granite 3: factors on embeddings, scores, branches and logits. No torch."""

from __future__ import annotations

from typing import Any

from quire.families.family import Family, sizes
from quire.families.fields import Fields
from quire.families.reading import read_biases, read_heads, read_plain_decoder
from quire.spec import LogitsPlan, ModelSpec


def read(fields: Fields, kv_heads: int | None = None, **given: Any) -> ModelSpec:
    """`kv_heads`: a default. `given`: more arguments of read_plain_decoder."""
    return read_plain_decoder(
        fields,
        read_heads(fields, kv_heads=kv_heads),
        scale=fields.positive("attention_multiplier", 1.0),
        **read_biases(fields),
        mlp_bias=fields.flag("mlp_bias", False),
        layer={"branch_scale": fields.positive("residual_multiplier", 1.0)},
        facts={
            "embedding_scale": fields.positive("embedding_multiplier", 1.0),
            "logits": LogitsPlan(scale=1 / fields.positive("logits_scaling", 1.0)),
        },
        **given,
    )


# The names of the factors in GGUF files.
GGUF_FACTORS = ("attention.scale", "embedding_scale", "residual_scale", "logit_scale")


def gguf_factors(fields: Fields, config: dict[str, Any]) -> dict[str, Any]:
    arch = fields.word("general.architecture")
    words = ("attention", "embedding", "residual")
    found = {
        f"{word}_multiplier": fields.positive(f"{arch}.{key}", 1.0)
        for word, key in zip(words, GGUF_FACTORS, strict=False)
    }
    return {**found, "logits_scaling": fields.positive(f"{arch}.logit_scale", 1.0)}


FAMILY = Family(
    name="granite",
    architectures=("GraniteForCausalLM",),
    read=read,
    unsaid=sizes(32_000, 4096, 11_008, 32, 32, 2048),
    gguf="granite",
    gguf_interleaved=True,
    gguf_words=gguf_factors,
    gguf_reads=GGUF_FACTORS,
)
