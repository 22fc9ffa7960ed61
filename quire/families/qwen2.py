"""Qwen2: biases for q, k and v; optional windows in the later layers. No torch."""

from __future__ import annotations

from quire.families.family import Family, sizes
from quire.families.fields import Fields
from quire.families.reading import read_heads, read_plain_decoder, windows_from_a_layer_on
from quire.spec import ModelSpec


def read(fields: Fields, *, kv_heads: int = 32) -> ModelSpec:
    return read_plain_decoder(
        fields,
        read_heads(fields, kv_heads=kv_heads),
        qkv_bias=True,
        windows=windows_from_a_layer_on(fields),
    )


FAMILY = Family(
    name="qwen2",
    architectures=("Qwen2ForCausalLM",),
    read=read,
    unsaid=sizes(151_936, 4096, 22_016, 32, 32, 32_768),
    gguf="qwen2",
)
