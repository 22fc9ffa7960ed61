"""GLM: rope on half of each head, with interleaved pairs; gate and up in one matrix. No torch."""

from __future__ import annotations

from quire.families.family import Family, LayerNames, Name, sizes
from quire.families.reading import read_half_turned

FAMILY = Family(
    name="glm",
    architectures=("GlmForCausalLM",),
    read=read_half_turned,
    unsaid=sizes(151_552, 4096, 13_696, 40, 32, 131_072),
    partial_rotary=True,
    names=LayerNames(gate_up=(Name("mlp.gate_up_proj", "ffn_up"),)),
)
