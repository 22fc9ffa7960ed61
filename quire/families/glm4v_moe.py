"""The text model of GLM-4.5V: Glm4Moe with positions of three coordinates. No torch."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from quire.families import glm4_moe
from quire.families.axes import read_with_axes
from quire.families.family import Family, sizes
from quire.families.glm4v import SECTIONS

READ_TEXT = partial(glm4_moe.read, biased=True)

FAMILY = Family(
    name="glm4v_moe",
    architectures=("Glm4vMoeForConditionalGeneration",),
    model_types=("glm4v_moe", "glm4v_moe_text"),
    read=partial(read_with_axes, read=READ_TEXT, unsaid=SECTIONS, interleaved=False),
    unsaid=sizes(151_424, 4096, 10_944, 46, 96, 65_536),
    partial_rotary=True,
    # As part of another class's model it is saved with all experts in one tensor.
    names=replace(
        glm4_moe.FAMILY.names,
        expert_stacks=("mlp.experts.gate_up_proj", "mlp.experts.down_proj"),
    ),
    only={"use_qk_norm": (False,)},  # the class has none, whatever a config says
    without_effect=glm4_moe.FAMILY.without_effect,
)
