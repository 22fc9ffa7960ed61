"""Mistral: windows in every layer, or in those that `layer_types` names. No torch."""

from __future__ import annotations

from quire.families.family import Family
from quire.families.fields import Fields
from quire.families.reading import read_heads, read_plain_decoder, read_window, windows_by_kind
from quire.spec import ModelSpec


def read(fields: Fields) -> ModelSpec:
    window = read_window(fields)
    return read_plain_decoder(
        "mistral",
        fields,
        read_heads(fields, kv_heads=8),
        window=window,
        windows=windows_by_kind(fields, window),
    )


FAMILY = Family(
    name="mistral",
    # With windows for some layers it has a name of its own in Transformers.
    architectures=("MistralForCausalLM", "MinistralForCausalLM"),
    model_types=("mistral", "ministral"),
    read=read,
    gguf="llama",
    gguf_windows=True,
    gguf_interleaved=True,
    unsaid={
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
    },
)
