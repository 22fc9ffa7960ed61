"""Hunyuan 3: q and k normed head by head, experts chosen by sigmoids and a bias, and shared ones,
but in the first layer or those that are listed. No torch."""

from __future__ import annotations

from quire.families.family import Family, LayerNames, Name, sizes
from quire.families.fields import Fields
from quire.families.mixtures import (
    ROUTER_KEYS,
    dense_layers,
    read_routed_experts,
    with_experts,
)
from quire.families.reading import read_biases, read_heads, read_plain_decoder
from quire.families.rope_config import read_rope
from quire.layer_plan import MlpPlan
from quire.spec import ModelSpec

WORDS = {
    "n_routed_experts": "num_experts",
    "n_shared_experts": "num_shared_experts",
    "routed_scaling_factor": "router_scaling_factor",
}


def read(fields: Fields) -> ModelSpec:
    heads, bias = read_heads(fields, kv_heads=8, head_dim=128), fields.flag("mlp_bias", False)
    spec = read_plain_decoder(
        fields,
        heads,
        rope=read_rope(fields, heads.head_dim, theta=11_158_840.0),
        norm_eps=1e-5,
        qk_norm=True,
        mlp_bias=bias,
        **read_biases(fields),
    )
    said = fields.under(WORDS, routed_scaling_factor=2.826)
    width = fields.count("moe_intermediate_size", 1536) * fields.count("num_shared_experts", 1)
    shared = MlpPlan(width, bias=bias)
    experts = read_routed_experts(said, count=192, width=1536, per_token=8, shared=shared)
    listed = Fields({"mlp_only_layers": dense_layers(fields, 1)}, fields.source)
    return with_experts(spec, listed, experts)


def _shared(name: str, gguf: str) -> Name:
    return Name(f"mlp.shared_mlp.{name}", gguf, hf_also=f"mlp.shared_experts.{name}")


FAMILY = Family(
    name="hy_v3",
    architectures=("HYV3ForCausalLM",),
    read=read,
    unsaid=sizes(120_832, 4096, 13_312, 80, 64, 131_072),
    names=LayerNames(
        router=Name("mlp.router.gate", "ffn_gate_inp", hf_also="mlp.gate"),
        router_choice=Name(
            "mlp.expert", "exp_probs_b", bare=True, hf_also="mlp.e_score_correction"
        ),
        shared_gate_up=(
            _shared("gate_proj", "ffn_gate_shexp"),
            _shared("up_proj", "ffn_up_shexp"),
        ),
        shared_down=_shared("down_proj", "ffn_down_shexp"),
    ),
    only={"route_norm": (True,), "qk_norm": (True,)},
    without_effect={
        **ROUTER_KEYS,
        "enable_moe_fp32_combine": "one sum of two rounded numbers, which is rounded once",
    },
)
