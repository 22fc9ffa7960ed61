"""Tiny random models of every family, as Transformers has them and as quire takes them."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers import AutoModelForCausalLM, PretrainedConfig
from transformers.models.gemma3 import Gemma3TextConfig
from transformers.models.llama import LlamaConfig
from transformers.models.ministral import MinistralConfig
from transformers.models.mistral import MistralConfig
from transformers.models.phi3 import Phi3Config
from transformers.models.qwen2 import Qwen2Config
from transformers.models.qwen3 import Qwen3Config

from quire.spec import ModelSpec
from quire.weights.hf_config import spec_from_hf
from quire.weights.names import weights_of

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "initializer_range": 0.25,
    "rms_norm_eps": 1e-5,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}

# Heads of 16, as Phi-3 has it: by the hidden size.
PHI3: dict[str, Any] = {
    **{key: value for key, value in SIZES.items() if key != "head_dim"},
    "hidden_size": 96,
    "pad_token_id": 0,
    "eos_token_id": 1,
}
LONG: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0 + i / 8 for i in range(6)],
    "long_factor": [2.0 + i for i in range(6)],
    "partial_rotary_factor": 0.75,
}

# Two periods of layers with a window of 9, which prompts exceed, and a scaled rope on the others.
GEMMA3: dict[str, Any] = {
    **SIZES,
    "num_hidden_layers": 6,
    "layer_types": (["sliding_attention"] * 2 + ["full_attention"]) * 2,
    "sliding_window": 9,
    "query_pre_attn_scalar": 20,
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 8.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    },
}

FAMILIES: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**SIZES, tie_word_embeddings=True),
    "llama untied, every bias": LlamaConfig(
        **SIZES, tie_word_embeddings=False, attention_bias=True, mlp_bias=True
    ),
    "llama3 rope": LlamaConfig(**SIZES, tie_word_embeddings=True, rope_parameters=LLAMA3),
    "llama linear rope": LlamaConfig(**SIZES, tie_word_embeddings=True, rope_parameters=LINEAR),
    "llama, one kv head": LlamaConfig(**{**SIZES, "num_key_value_heads": 1}),
    "llama, no grouping": LlamaConfig(**{**SIZES, "num_key_value_heads": 6}),
    "mistral": MistralConfig(**SIZES, sliding_window=None),
    "mistral, window 9": MistralConfig(**SIZES, sliding_window=9, tie_word_embeddings=True),
    "ministral, window 9 in some layers": MinistralConfig(
        **SIZES,
        sliding_window=9,
        layer_types=["full_attention", "sliding_attention", "sliding_attention"],
    ),
    "llama yarn": LlamaConfig(**SIZES, rope_parameters=YARN),
    "qwen3 yarn, its own ramp and factor": Qwen3Config(
        **SIZES,
        rope_parameters={
            **YARN,
            "beta_fast": 4.0,
            "beta_slow": 0.5,
            "truncate": False,
            "attention_factor": 1.3,
        },
    ),
    "qwen2": Qwen2Config(
        **{k: v for k, v in SIZES.items() if k != "head_dim"}, tie_word_embeddings=True
    ),
    "qwen2, two layers with window 7": Qwen2Config(
        **{k: v for k, v in SIZES.items() if k != "head_dim"},
        use_sliding_window=True,
        sliding_window=7,
        max_window_layers=1,
    ),
    "qwen3": Qwen3Config(**SIZES, tie_word_embeddings=True),
    "qwen3 untied": Qwen3Config(**SIZES, tie_word_embeddings=False),
    "phi3, window 9": Phi3Config(**PHI3, sliding_window=9),
    "phi3, partial longrope": Phi3Config(
        **PHI3,
        original_max_position_embeddings=256,
        rope_parameters=LONG,
        tie_word_embeddings=True,
    ),
    "gemma3": Gemma3TextConfig(**GEMMA3),
    "gemma3, softcap, every bias, untied": Gemma3TextConfig(
        **{**GEMMA3, "tie_word_embeddings": False},
        attention_bias=True,
        attn_logit_softcapping=3.0,
        final_logit_softcapping=10.0,
    ),
}

# Searches and scores meet a model in its groups of layers and its logits alone: in the gate they
# are run with one of each kind, and with all of them where --long is given.
_OF_EACH_KIND = {
    "llama",
    "mistral, window 9",
    "ministral, window 9 in some layers",
    "qwen3 untied",
    "phi3, window 9",
    "gemma3, softcap, every bias, untied",
}
OF_EACH_KIND = [
    pytest.param(name, marks=() if name in _OF_EACH_KIND else pytest.mark.long) for name in FAMILIES
]


def known(kind: str, **said: Any) -> PretrainedConfig | None:
    """A config of this class; None if the installed Transformers does not have it."""
    made = getattr(transformers, kind, None)
    return None if made is None else made(**said)


@dataclass(frozen=True)
class Pair:
    """One model, twice."""

    oracle: Any
    spec: ModelSpec
    weights: dict[str, Tensor]

    @torch.no_grad()
    def expected(self, text: list[int]) -> Tensor:
        """The oracle's logits after each token of a text. [len(text), V]"""
        logits: Tensor = self.oracle(torch.tensor([text])).logits[0]
        return logits


def make_pair(name: str, dtype: torch.dtype = torch.float32) -> Pair:
    """The model of that name with the same random weights on both sides."""
    config = FAMILIES[name]
    torch.manual_seed(0)
    oracle = AutoModelForCausalLM.from_config(deepcopy(config), attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in oracle.parameters():
            if parameter.dim() == 1:  # norms start at 1 and biases at 0; here they must matter
                parameter.add_(torch.randn_like(parameter) * 0.2)
    oracle = oracle.to(dtype)
    kind = type(config).__name__.removesuffix("Config").removesuffix("Text")
    spec = spec_from_hf({**config.to_dict(), "architectures": [f"{kind}ForCausalLM"]})
    return Pair(oracle, spec, canonical(oracle.state_dict(), spec))


def canonical(stored: dict[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:
    """Transformers' names to quire's, with q, k, v and gate, up put on top of each other."""
    renamed = {}
    for weight in weights_of(spec):
        made = torch.cat([stored[part.hf] for part in weight.parts])
        if weight.name.endswith("attn.qkv.weight") and spec.rope.dims < spec.head_dim:
            made = in_pairs(made, spec)
        if weight.name.endswith("norm.weight") and spec.norm.one_plus:
            made = 1 + made.float()
        renamed[weight.name] = made.detach().clone()
    return renamed


def in_pairs(qkv: Tensor, spec: ModelSpec) -> Tensor:
    """Rows of q and k so that i and i + half are a pair, also of those that are not turned."""
    size, dims = spec.head_dim, spec.rope.dims
    turned = (spec.num_heads + spec.num_kv_heads) * size
    heads = qkv[:turned].view(-1, size, qkv.shape[1])
    pairs, rest = heads[:, :dims].chunk(2, 1), heads[:, dims:].chunk(2, 1)
    ordered = torch.cat([pairs[0], rest[0], pairs[1], rest[1]], 1)
    return torch.cat([ordered.reshape(turned, -1), qkv[turned:]])
