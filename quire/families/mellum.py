"""Mellum 2: q and k normed head by head, windows in some layers, which have another rope, and
experts in all layers but those that are listed. No torch."""

from __future__ import annotations

from quire.families.family import Family, sizes
from quire.families.fields import Fields
from quire.families.mixtures import ROUTER_KEYS, dense_layers, read_experts, with_experts
from quire.families.reading import (
    read_biases,
    read_heads,
    read_plain_decoder,
    read_window,
    windows_by_kind,
    with_rope_of_windows,
)
from quire.families.rope_config import read_ropes_by_kind
from quire.spec import ModelSpec

THETAS = {"full_attention": 500_000.0, "sliding_attention": 10_000.0}


def read(fields: Fields) -> ModelSpec:
    heads = read_heads(fields, kv_heads=4, head_dim=128)
    ropes = read_ropes_by_kind(fields, heads.head_dim, THETAS, scaled="full_attention")
    spec = read_plain_decoder(
        fields,
        heads,
        rope=ropes["full_attention"],
        windows=windows_by_kind(fields, read_window(fields, unsaid=1024)),
        qk_norm=True,
        **read_biases(fields),
    )
    width = fields.count("moe_intermediate_size", 896)
    renormalise = fields.flag("norm_topk_prob", True)
    experts = read_experts(fields, width, count=64, per_token=8, renormalise=renormalise)
    listed = Fields({"mlp_only_layers": dense_layers(fields, 0)}, fields.source)
    return with_experts(with_rope_of_windows(spec, ropes["sliding_attention"]), listed, experts)


FAMILY = Family(
    name="mellum",
    architectures=("MellumForCausalLM",),
    read=read,
    unsaid=sizes(98_304, 2304, 7168, 28, 32, 131_072),
    without_effect={
        **ROUTER_KEYS,
        **dict.fromkeys(
            ("num_mtp_layers", "mtp_layer_types", "mtp_mlp_layer_types"),
            "layers that guess ahead, which are not read",
        ),
    },
)
