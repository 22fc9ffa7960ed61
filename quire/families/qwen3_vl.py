"""The text model of Qwen3-VL: Qwen3 with positions of three coordinates. No torch."""

from __future__ import annotations

from functools import partial

from quire.families import qwen3
from quire.families.axes import read_with_axes
from quire.families.family import Family, sizes

FAMILY = Family(
    name="qwen3_vl",
    architectures=("Qwen3VLForConditionalGeneration",),
    model_types=("qwen3_vl", "qwen3_vl_text"),
    read=partial(read_with_axes, read=qwen3.read, unsaid=(24, 20, 20), interleaved=True),
    unsaid=sizes(151_936, 4096, 22_016, 32, 32, 128_000) | {"rope_theta": 5e5},
)
