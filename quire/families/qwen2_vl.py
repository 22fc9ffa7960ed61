"""The text of Qwen2-VL and Qwen2.5-VL: Qwen2 with positions of three coordinates. No torch."""

from __future__ import annotations

from functools import partial

from quire.families import qwen2
from quire.families.axes import read_with_axes
from quire.families.family import Family, sizes

READ_TEXT = partial(qwen2.read, kv_heads=8)

FAMILY = Family(
    name="qwen2_vl",
    architectures=("Qwen2_5_VLForConditionalGeneration", "Qwen2VLForConditionalGeneration"),
    model_types=("qwen2_5_vl", "qwen2_5_vl_text", "qwen2_vl", "qwen2_vl_text"),
    read=partial(read_with_axes, read=READ_TEXT, unsaid=(16, 24, 24), interleaved=False),
    unsaid=sizes(152_064, 8192, 29_568, 80, 64, 32_768) | {"rms_norm_eps": 1e-5, "rope_theta": 1e6},
)
