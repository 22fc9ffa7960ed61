"""What a config means that leaves out sizes of its text: those of the first model of its kind.

Configs of models that see hold of their text only what differs from Transformers' defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_LLAMA = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
}
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "llama": _LLAMA,
    "mistral": {
        **_LLAMA,
        "intermediate_size": 14336,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
    },
    "qwen2": {**_LLAMA, "vocab_size": 151936, "intermediate_size": 22016},
    "qwen3": {**_LLAMA, "vocab_size": 151936, "intermediate_size": 22016},
}


def text_defaults(model_type: str) -> Mapping[str, Any]:
    return _DEFAULTS.get(model_type, {})
