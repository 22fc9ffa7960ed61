"""The text model of PaddleOCR-VL: ERNIE 4.5 with positions of three coordinates, and the pairs of
rope in the usual order. No torch."""

from __future__ import annotations

from functools import partial

from quire.families import ernie4_5
from quire.families.axes import read_with_axes
from quire.families.family import Family

READ_TEXT = partial(ernie4_5.read_plain, kv_heads=2, head_dim=128)

FAMILY = Family(
    name="paddleocr_vl",
    architectures=("PaddleOCRVLForConditionalGeneration",),
    model_types=("paddleocr_vl", "paddleocr_vl_text"),
    read=partial(read_with_axes, read=READ_TEXT, unsaid=(16, 24, 24), interleaved=False),
    unsaid=ernie4_5.FAMILY.unsaid,
)
