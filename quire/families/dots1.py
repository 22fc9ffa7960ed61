"""dots.llm1: q and k normed head by head, windows in later layers; experts chosen by sigmoids and a
bias, and shared ones, but in the first layers. No torch."""

from __future__ import annotations

from typing import Any

from quire.families.family import Family, LayerNames, sizes
from quire.families.fields import Fields
from quire.families.mixtures import (
    GGUF_ROUTING,
    ROUTER_KEYS,
    SHARED_NAMES,
    gguf_sigmoid_routing,
    read_routed_experts,
    with_experts,
)
from quire.families.reading import (
    num_layers,
    read_biases,
    read_heads,
    read_plain_decoder,
    read_window,
    windows_by_kind,
)
from quire.spec import ModelSpec


def read(fields: Fields) -> ModelSpec:
    fields.refuse_null("max_window_layers")
    window, first = read_window(fields), fields.whole("max_window_layers", 62)
    later = tuple(window if i >= first else None for i in range(num_layers(fields)))
    spec = read_plain_decoder(
        fields,
        read_heads(fields, kv_heads=32),
        **read_biases(fields),
        qk_norm=True,
        windows=windows_by_kind(fields, window) or later,
    )
    # These have no defaults.
    count, _, chosen = (
        fields.count(key) for key in ("n_routed_experts", "n_shared_experts", "num_experts_per_tok")
    )
    renormalise = fields.flag("norm_topk_prob", False)
    experts = read_routed_experts(
        fields, count=count, width=1408, per_token=chosen, renormalise=renormalise
    )
    return with_experts(spec, fields, experts)


def _gguf_words(fields: Fields, config: dict[str, Any]) -> dict[str, Any]:
    return gguf_sigmoid_routing(fields, "dots1", config)


FAMILY = Family(
    name="dots1",
    architectures=("Dots1ForCausalLM",),
    read=read,
    unsaid=sizes(152_064, 4608, 10_944, 62, 32, 2048),
    gguf="dots1",
    gguf_experts=True,
    gguf_words=_gguf_words,
    gguf_reads=GGUF_ROUTING,
    names=LayerNames(**SHARED_NAMES),
    without_effect=ROUTER_KEYS,
)
