"""The text model of Qwen3-VL with experts: Qwen3-MoE with positions of three coordinates. No
torch."""

from __future__ import annotations

from functools import partial

from quire.families import qwen3_moe
from quire.families.axes import read_with_axes
from quire.families.family import Family, LayerNames, sizes
from quire.families.mixtures import ROUTER_KEYS

READ_TEXT = partial(
    qwen3_moe.read, kv_heads=16, width=1408, count=60, per_token=4, renormalise=True
)

FAMILY = Family(
    name="qwen3_vl_moe",
    architectures=("Qwen3VLMoeForConditionalGeneration",),
    model_types=("qwen3_vl_moe", "qwen3_vl_moe_text"),
    read=partial(read_with_axes, read=READ_TEXT, unsaid=(24, 20, 20), interleaved=True),
    unsaid=sizes(151_936, 2048, 5632, 24, 16, 128_000) | {"rope_theta": 5e5},
    names=LayerNames(
        expert_stacks=("mlp.experts.gate_up_proj", "mlp.experts.down_proj"),
        stacks_either_way=True,
    ),
    # Transformers' class always does the one and never has the other, whatever a config says.
    only={"norm_topk_prob": (True,), "use_sliding_window": (False,)},
    without_effect=ROUTER_KEYS,
)
