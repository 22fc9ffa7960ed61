"""Granite-MoE with windows, sinks and thetas by layer. No torch."""

from __future__ import annotations

from dataclasses import replace

from quire.families import granite_swa, granitemoe
from quire.families.family import Family, Name
from quire.families.fields import Fields
from quire.families.mixtures import ROUTER_KEYS
from quire.spec import ModelSpec


def read(fields: Fields) -> ModelSpec:
    return granite_swa.read_windowed(fields, granitemoe.read)


PART = "block_sparse_moe"
GATE_UP = f"{PART}.experts.gate_up_proj"
FAMILY = Family(
    name="granitemoe_swa",
    architectures=("GraniteMoeSWAForCausalLM",),
    read=read,
    unsaid=granitemoe.FAMILY.unsaid,
    names=replace(
        granitemoe.FAMILY.names,
        router=Name(f"{PART}.router", "ffn_gate_inp"),
        expert_gate_up=(
            Name(GATE_UP, "ffn_gate_exps", bare=True, stacked=True),
            Name(GATE_UP, "ffn_up_exps", bare=True, stacked=True),
        ),
        expert_down=Name(f"{PART}.experts.down_proj", "ffn_down_exps", bare=True, stacked=True),
    ),
    without_effect=ROUTER_KEYS,
)
