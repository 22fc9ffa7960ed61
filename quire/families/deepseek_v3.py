"""DeepSeek V3 and R1, Kimi K2, Moonlight: latent attention, and experts chosen by sigmoids and a
bias within the best groups. No torch."""

from __future__ import annotations

from typing import Any

from quire.families.family import Family, LayerNames, sizes
from quire.families.fields import Fields
from quire.families.latents import GGUF_READS, WITHOUT_EFFECT, gguf_latent, read_latent_decoder
from quire.families.mixtures import (
    SHARED_NAMES,
    gguf_routing,
    read_routed_experts,
    with_experts,
)
from quire.spec import ModelSpec

UNSAID: dict[str, Any] = {"n_group": 8, "topk_group": 4, "first_k_dense_replace": 3}
GGUF = "deepseek2"  # also written for DeepSeek V2, which chooses experts in another way


def read(fields: Fields) -> ModelSpec:
    fields = fields.under({}, **UNSAID, routed_scaling_factor=2.5)
    interleaved = fields.flag("rope_interleave", True)
    spec = read_latent_decoder(fields, interleaved=interleaved)
    experts = read_routed_experts(fields, count=256, width=2048, per_token=8)
    return with_experts(spec, fields, experts)


def _gguf_words(fields: Fields, config: dict[str, Any]) -> dict[str, Any]:
    routing = gguf_routing(fields, GGUF, config)
    by_sigmoid, grouped = routing.pop("by_sigmoid"), routing["n_group"] > 1
    words = {**routing, **gguf_latent(fields, GGUF, config)}
    if by_sigmoid:
        return words
    return {
        **words,
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "topk_method": "group_limited_greedy" if grouped else "greedy",
    }


FAMILY = Family(
    name="deepseek_v3",
    architectures=("DeepseekV3ForCausalLM",),
    model_types=("deepseek_v3", "kimi_k2"),
    read=read,
    unsaid=sizes(129_280, 7168, 18_432, 61, 128, 4096),
    gguf=GGUF,
    gguf_experts=True,
    gguf_words=_gguf_words,
    gguf_reads=GGUF_READS,
    names=LayerNames(**SHARED_NAMES),
    without_effect=WITHOUT_EFFECT,
    only={
        "topk_method": ("noaux_tc",),
        "scoring_func": ("sigmoid",),
        "moe_layer_freq": (1,),
    },
)
