"""Phi-3.5-MoE: LayerNorms with biases, longrope, and two experts for a token, which are chosen one
by one. No torch."""

from __future__ import annotations

from dataclasses import replace

from quire.families import mixtral, phi3
from quire.families.family import Family, Name, sizes
from quire.families.fields import Fields
from quire.families.mixtures import ROUTER_KEYS, read_experts, with_experts
from quire.families.reading import read_biases, read_heads, read_plain_decoder
from quire.families.rope_config import RopeSettings, read_rope, rope_fields
from quire.layer_parts.rope import FactorRope
from quire.layer_plan import NormPlan
from quire.spec import LogitsPlan, ModelSpec

ROPE_KINDS = {"longrope": "longrope", "su": "longrope"}


def read(fields: Fields) -> ModelSpec:
    heads = read_heads(fields, kv_heads=8)
    spec = read_plain_decoder(
        fields,
        heads,
        rope=_read_rope(fields, heads.head_dim),
        norm=NormPlan(fields.positive("rms_norm_eps", 1e-5), kind="layer", bias=True),
        window=phi3.read_shorter_window(fields),
        **read_biases(fields),
        facts={"logits": LogitsPlan(bias=fields.flag("lm_head_bias", False))},
    )
    near = 2 * fields.not_negative("router_jitter_noise", 0.01)
    width = fields.count("intermediate_size")
    return with_experts(
        spec, fields, read_experts(fields, width, count=16, per_token=2, apart=near)
    )


def _read_rope(fields: Fields, head_dim: int) -> RopeSettings:
    """Both sets of factors have a factor of cos and sin of their own."""
    rope = read_rope(
        fields,
        head_dim,
        kinds=ROPE_KINDS,
        original=phi3.ORIGINAL_LEN,
        theta=mixtral.THETA,
    )
    if not isinstance(rope.scaling, FactorRope):
        return rope
    said, usual = rope_fields(fields), rope.scaling.attention_factor
    short, long = (said.positive(f"{one}_mscale", usual) for one in ("short", "long"))
    return replace(rope, scaling=replace(rope.scaling, attention_factor=short, long_attention=long))


FAMILY = Family(
    name="phimoe",
    architectures=("PhimoeForCausalLM",),
    read=read,
    unsaid=sizes(32_064, 4096, 6400, 32, 32, 131_072),
    gguf="phimoe",
    gguf_experts=True,
    gguf_windows=True,
    names=replace(
        mixtral.FAMILY.names,
        router=Name("block_sparse_moe.gate", "ffn_gate_inp", hf_also="mlp.router"),
    ),
    without_effect={**ROUTER_KEYS, "input_jitter_noise": "training"},
    # Two are chosen whatever the config says; more have no meaning.
    only={"num_experts_per_tok": (2,)},
)
