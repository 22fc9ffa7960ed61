"""Mistral: windows in every layer, or in those that `layer_types` names. No torch."""

from __future__ import annotations

from quire.families.family import Family, sizes
from quire.families.fields import Fields
from quire.families.reading import read_heads, read_plain_decoder, read_window, windows_by_kind
from quire.spec import ModelSpec


def read(fields: Fields) -> ModelSpec:
    window = read_window(fields)
    return read_plain_decoder(
        fields,
        read_heads(fields, kv_heads=8),
        window=window,
        windows=windows_by_kind(fields, window),
    )


FAMILY = Family(
    name="mistral",
    # The second is Transformers' name for models with windows in some layers only.
    architectures=("MistralForCausalLM", "MinistralForCausalLM"),
    model_types=("mistral", "ministral"),
    read=read,
    unsaid=sizes(32_000, 4096, 14_336, 32, 32, 131_072),
    gguf="llama",
    gguf_windows=True,
    gguf_interleaved=True,
)
