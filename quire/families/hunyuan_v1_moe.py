"""Hunyuan with experts, and one for every token, in all layers, which may take different numbers of
experts. No torch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from quire.families import hunyuan_v1_dense
from quire.families.family import Family, Name, sizes
from quire.families.fields import Fields
from quire.families.mixtures import ROUTER_KEYS, read_count
from quire.layer_plan import ExpertsPlan, MlpPlan
from quire.spec import ModelSpec


def read(fields: Fields) -> ModelSpec:
    one, count = MlpPlan(fields.count("intermediate_size")), read_count(fields, 1)
    experts = ExpertsPlan(count, 1, one, renormalise=True, shared=one, shared_gate=False)
    spec = hunyuan_v1_dense.read(fields, mlp=experts)
    numbers = zip(spec.layers, _chosen(fields, spec.num_layers, count), strict=True)
    layers = (replace(one, mlp=replace(experts, per_token=n)) for one, n in numbers)
    return replace(spec, layers=tuple(layers))


def _chosen(fields: Fields, layers: int, most: int) -> list[int]:
    """How many experts a token takes in each layer: a number for all, or a list of them."""
    said = fields.values.get("moe_topk")
    each = said if isinstance(said, list) else [1 if said is None else said] * layers
    if len(each) < layers:
        raise fields.wrong("moe_topk", f"a number, or one for each of {layers} layers")
    one = (Fields({"moe_topk": number}, fields.source) for number in each[:layers])
    return [number.count("moe_topk", most=most) for number in one]


def _gguf_words(fields: Fields, config: dict[str, Any]) -> dict[str, Any]:
    said = Fields({key: fields.values.get(f"hunyuan-moe.{key}") for key in SHARED}, fields.source)
    width = config["moe_intermediate_size"]
    for key, only in zip(SHARED, (1, width), strict=True):
        if said.count(key, only) != only:
            raise said.unsupported(key, f"{only}: the shared expert is one like the others")
    return {"moe_topk": config["num_experts_per_tok"], "intermediate_size": width}


SHARED = ("expert_shared_count", "expert_shared_feed_forward_length")
FAMILY = Family(
    name="hunyuan_v1_moe",
    architectures=("HunYuanMoEV1ForCausalLM",),
    read=read,
    unsaid=sizes(290_943, 4096, 11_008, 32, 32, 2048),
    gguf="hunyuan-moe",
    gguf_experts=True,
    gguf_words=_gguf_words,
    gguf_reads=SHARED,
    names=replace(
        hunyuan_v1_dense.NAMES,
        router=Name("mlp.gate.wg", "ffn_gate_inp"),
        shared_gate_up=(
            Name("mlp.shared_mlp.gate_proj", "ffn_gate_shexp"),
            Name("mlp.shared_mlp.up_proj", "ffn_up_shexp"),
        ),
        shared_down=Name("mlp.shared_mlp.down_proj", "ffn_down_shexp"),
    ),
    without_effect={**ROUTER_KEYS, **hunyuan_v1_dense.WITHOUT_EFFECT},
)
