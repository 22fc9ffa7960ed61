"""gpt-oss: a sink in the attention of every head, a window in every second layer, YaRN, biases, and
experts with clamped gates. No torch."""

from __future__ import annotations

from typing import Any

from quire.families.family import Family, LayerNames, Name, sizes
from quire.families.fields import Fields
from quire.families.mixtures import ROUTER_KEYS, read_count, with_experts
from quire.families.reading import (
    read_biases,
    read_heads,
    read_plain_decoder,
    read_window,
    windows_in_turn,
)
from quire.families.rope_config import read_rope
from quire.layer_plan import CLAMP, CLAMPED_SLOPE, ExpertsPlan, MlpPlan, NormPlan
from quire.spec import ModelSpec

PERIOD = 2  # one layer in each period has no window: its last
# Used if a config has no rope settings.
ROPE: dict[str, Any] = {
    "rope_type": "yarn",
    "factor": 32.0,
    "original_max_position_embeddings": 4096,
    "truncate": False,
}


def read(fields: Fields) -> ModelSpec:
    said = fields.values.get("rope_scaling") or fields.values.get("rope_parameters")
    fields = fields if said else fields.under({}, rope_parameters=ROPE)
    heads = read_heads(fields, kv_heads=8, head_dim=64)
    window = read_window(fields, unsaid=128)
    spec = read_plain_decoder(
        fields,
        heads,
        rope=read_rope(fields, heads.head_dim, theta=150_000.0),
        windows=windows_in_turn(fields, window, PERIOD),
        norm=NormPlan(fields.positive("rms_norm_eps", 1e-5), rounds_last=True),
        **read_biases(fields, unsaid=True),
        sinks=True,
    )
    experts = ExpertsPlan(
        read_count(fields, 128),
        fields.count("num_experts_per_tok", 4),
        MlpPlan(fields.count("intermediate_size"), "clamped_silu", bias=True),
        renormalise=True,
        router_bias=True,
    )
    return with_experts(spec, fields, experts)


def _gguf_words(fields: Fields, config: dict[str, Any]) -> dict[str, Any]:
    rope = config["rope_scaling"]
    return {
        "rope_scaling": rope and {**rope, "truncate": False},
        "intermediate_size": config["moe_intermediate_size"],
        "sliding_window": fields.count("gpt-oss.attention.sliding_window"),
    }


GATE_UP = "mlp.experts.gate_up_proj"
STORED: dict[str, Any] = {"bare": True, "transposed": True, "stacked": True}
FAMILY = Family(
    name="gpt_oss",
    architectures=("GptOssForCausalLM",),
    read=read,
    unsaid=sizes(201_088, 2880, 2880, 36, 64, 131_072),
    gguf="gpt-oss",
    gguf_experts=True,
    gguf_windows=True,
    gguf_words=_gguf_words,
    names=LayerNames(
        mlp_norm=Name("post_attention_layernorm", "post_attention_norm"),
        router=Name("mlp.router", "ffn_gate_inp"),
        expert_gate_up=(
            Name(GATE_UP, "ffn_gate_exps", **STORED, alternating=True),
            Name(GATE_UP, "ffn_up_exps", **STORED, alternating=True),
        ),
        expert_down=Name("mlp.experts.down_proj", "ffn_down_exps", **STORED),
    ),
    without_effect=ROUTER_KEYS,
    only={
        "hidden_act": ("silu",),
        "swiglu_alpha": (CLAMPED_SLOPE,),
        "swiglu_limit": (CLAMP,),
    },
)
