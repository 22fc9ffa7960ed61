"""Qwen2: biases for q, k and v, windows from a layer on. No torch."""

from __future__ import annotations

from quire.families.family import Family
from quire.families.fields import Fields
from quire.families.reading import read_heads, read_plain_decoder, windows_from_a_layer_on
from quire.spec import ModelSpec


def read(fields: Fields) -> ModelSpec:
    return read_plain_decoder(
        "qwen2",
        fields,
        read_heads(fields, kv_heads=32),
        qkv_bias=True,
        windows=windows_from_a_layer_on(fields),
    )


FAMILY = Family(
    name="qwen2",
    architectures=("Qwen2ForCausalLM",),
    read=read,
    gguf="qwen2",
    unsaid={
        "vocab_size": 151936,
        "hidden_size": 4096,
        "intermediate_size": 22016,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 32768,
    },
)
