"""Llama: the family that the others are told apart from. No torch."""

from __future__ import annotations

from quire.families.family import Family
from quire.families.fields import Fields
from quire.families.reading import read_biases, read_heads, read_plain_decoder
from quire.spec import ModelSpec


def read(fields: Fields) -> ModelSpec:
    return read_plain_decoder(
        "llama",
        fields,
        read_heads(fields),
        **read_biases(fields),
        mlp_bias=fields.flag("mlp_bias", False),
    )


FAMILY = Family(
    name="llama",
    architectures=("LlamaForCausalLM",),
    read=read,
    gguf="llama",
    gguf_interleaved=True,
    unsaid={
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 2048,
    },
)
