"""Mixtral: eight experts in place of each feed-forward, two for a token. No torch."""

from __future__ import annotations

from quire.families.family import Family, LayerNames, Name, sizes
from quire.families.fields import Fields
from quire.families.mixtures import ROUTER_KEYS, read_experts, with_experts
from quire.families.reading import read_heads, read_plain_decoder, read_window
from quire.families.rope_config import read_rope
from quire.spec import ModelSpec

THETA = 1_000_000.0


def read(fields: Fields) -> ModelSpec:
    heads = read_heads(fields, kv_heads=8)
    spec = read_plain_decoder(
        fields,
        heads,
        rope=read_rope(fields, heads.head_dim, theta=THETA),
        window=read_window(fields, unsaid=None),
        norm_eps=1e-5,
    )
    width = fields.count("intermediate_size")
    experts = read_experts(fields, width, count=8, per_token=2, renormalise=True)
    return with_experts(spec, fields, experts)


FAMILY = Family(
    name="mixtral",
    architectures=("MixtralForCausalLM",),
    read=read,
    unsaid=sizes(32_000, 4096, 14_336, 32, 32, 131_072),
    gguf="llama",
    gguf_experts=True,
    gguf_windows=True,
    gguf_interleaved=True,
    names=LayerNames(
        router=Name("block_sparse_moe.gate", "ffn_gate_inp", hf_also="mlp.gate"),
        expert_gate_up=(
            Name("block_sparse_moe.experts.{}.w1", "ffn_gate_exps"),
            Name("block_sparse_moe.experts.{}.w3", "ffn_up_exps"),
        ),
        expert_down=Name("block_sparse_moe.experts.{}.w2", "ffn_down_exps"),
    ),
    without_effect={**ROUTER_KEYS, "router_jitter_noise": "training"},
)
