"""Gemma: norms of 1 + w, a gate of gelu, an embedding times the root of its width. No torch."""

from __future__ import annotations

from quire.families.family import Family, sizes
from quire.families.fields import Fields
from quire.families.reading import read_biases, read_heads, read_plain_decoder
from quire.layer_plan import MlpPlan, NormPlan
from quire.spec import ModelSpec


def read(fields: Fields) -> ModelSpec:
    return read_plain_decoder(
        fields,
        read_heads(fields, kv_heads=16, head_dim=256),
        norm=NormPlan(fields.positive("rms_norm_eps", 1e-6), one_plus=True),
        mlp=MlpPlan(fields.count("intermediate_size"), "gelu_tanh"),
        **read_biases(fields),
        facts={
            "embedding_scale": fields.count("hidden_size") ** 0.5,
            "tied_embeddings": fields.flag("tie_word_embeddings", True),
        },
    )


FAMILY = Family(
    name="gemma",
    architectures=("GemmaForCausalLM",),
    read=read,
    unsaid=sizes(256_000, 3072, 24_576, 28, 16, 8192),
    gguf="gemma",
    only={
        # The first files say gelu, and mean its approximation.
        "hidden_act": ("gelu", "gelu_pytorch_tanh"),
        "hidden_activation": ("gelu", "gelu_pytorch_tanh"),
        "use_bidirectional_attention": (False,),
    },
)
