"""Llama: the plain decoder from which other families differ. No torch."""

from __future__ import annotations

from quire.families.family import Family, sizes
from quire.families.fields import Fields
from quire.families.reading import read_biases, read_heads, read_plain_decoder
from quire.spec import ModelSpec


def read(fields: Fields) -> ModelSpec:
    return read_plain_decoder(
        fields,
        read_heads(fields),
        **read_biases(fields),
        mlp_bias=fields.flag("mlp_bias", False),
    )


FAMILY = Family(
    name="llama",
    architectures=("LlamaForCausalLM",),
    read=read,
    unsaid=sizes(32_000, 4096, 11_008, 32, 32, 2048),
    gguf="llama",
    gguf_interleaved=True,
)
