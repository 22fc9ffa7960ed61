"""MiniMax M2: rope on a part of each head, q and k normed over all heads, and experts chosen by
sigmoids and a bias. No torch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from quire.families import mixtral
from quire.families.family import Family, Name, sizes
from quire.families.fields import Fields
from quire.families.mixtures import ROUTER_KEYS, read_experts, with_experts
from quire.families.reading import read_heads, read_plain_decoder
from quire.families.rope_config import read_rope
from quire.spec import ModelSpec


def read(fields: Fields) -> ModelSpec:
    heads = read_heads(fields, kv_heads=8, head_dim=128)
    # Published files say how many numbers of a head are rotated, not which part of it.
    turned = fields.count("rotary_dim", heads.head_dim)
    part = fields.under({}, partial_rotary_factor=turned / heads.head_dim)
    spec = read_plain_decoder(
        fields,
        heads,
        rope=read_rope(part, heads.head_dim, partial=True, theta=5_000_000.0),
        qk_norm=True,
        qk_norm_over="width",
    )
    experts = read_experts(
        fields,
        fields.count("intermediate_size"),
        count=256,
        per_token=8,
        renormalise=True,
        score="sigmoid",
        choice_bias=True,
    )
    return with_experts(spec, fields, experts)


def _gguf_words(fields: Fields, config: dict[str, Any]) -> dict[str, Any]:
    return {"intermediate_size": config["moe_intermediate_size"]}


FAMILY = Family(
    name="minimax_m2",
    architectures=("MiniMaxM2ForCausalLM",),
    read=read,
    unsaid=sizes(200_064, 3072, 1536, 62, 48, 196_608),
    gguf="minimax-m2",
    gguf_experts=True,
    gguf_words=_gguf_words,
    gguf_reads=("expert_gating_func",),
    partial_rotary=True,
    names=replace(
        mixtral.FAMILY.names,
        router_choice=Name(
            "block_sparse_moe.e_score_correction",
            "exp_probs_b",
            bare=True,
            hf_also="mlp.e_score_correction",
        ),
    ),
    without_effect={**ROUTER_KEYS, "router_jitter_noise": "training"},
)
