"""Glm4MoeLite: latent attention, experts chosen by sigmoids and a bias, and a list of layers
without experts. No torch."""

from __future__ import annotations

from quire.families.family import Family, LayerNames, sizes
from quire.families.fields import Fields
from quire.families.latents import SIZES, WITHOUT_EFFECT, read_latent_decoder
from quire.families.mixtures import (
    SHARED_NAMES,
    dense_layers,
    read_routed_experts,
    with_experts,
)
from quire.spec import ModelSpec

OWN_SIZES = {**SIZES, "q_lora_rank": 768, "qk_nope_head_dim": 192, "v_head_dim": 256}


def read(fields: Fields) -> ModelSpec:
    fields = fields.under({}, rms_norm_eps=1e-5, routed_scaling_factor=1.8)
    interleaved = fields.flag("rope_interleave", True)
    spec = read_latent_decoder(fields, sizes=OWN_SIZES, interleaved=interleaved)
    experts = read_routed_experts(fields, count=64, width=1536, per_token=4)
    return with_experts(spec, fields.under({}, mlp_only_layers=dense_layers(fields, 1)), experts)


FAMILY = Family(
    name="glm4_moe_lite",
    architectures=("Glm4MoeLiteForCausalLM",),
    read=read,
    unsaid=sizes(154_880, 2048, 10_240, 47, 20, 202_752),
    names=LayerNames(**SHARED_NAMES),
    without_effect=WITHOUT_EFFECT,
)
