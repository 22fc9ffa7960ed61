"""Gemma: norms of 1 + w, a gelu gate, embeddings times the root of the hidden size. No torch."""

from __future__ import annotations

from functools import partial

from quire.families.family import Family, sizes
from quire.families.reading import read_one_plus

FAMILY = Family(
    name="gemma",
    architectures=("GemmaForCausalLM",),
    read=partial(read_one_plus, kv_heads=16),
    unsaid=sizes(256_000, 3072, 24_576, 28, 16, 8192),
    gguf="gemma",
    only={
        # The first files say "gelu" but mean the tanh approximation.
        "hidden_act": ("gelu", "gelu_pytorch_tanh"),
        "hidden_activation": ("gelu", "gelu_pytorch_tanh"),
        "use_bidirectional_attention": (False,),
    },
)
