"""Qwen3: q and k normed head by head, head_dim 128, windows in later layers. No torch."""

from __future__ import annotations

from quire.families.family import Family, sizes
from quire.families.fields import Fields
from quire.families.reading import (
    read_biases,
    read_heads,
    read_plain_decoder,
    windows_from_a_layer_on,
)
from quire.spec import ModelSpec


def read(fields: Fields) -> ModelSpec:
    return read_plain_decoder(
        fields,
        read_heads(fields, kv_heads=32, head_dim=128),
        **read_biases(fields),
        qk_norm=True,
        windows=windows_from_a_layer_on(fields),
    )


FAMILY = Family(
    name="qwen3",
    architectures=("Qwen3ForCausalLM",),
    read=read,
    unsaid=sizes(151_936, 4096, 22_016, 32, 32, 32_768),
    gguf="qwen3",
)
