"""The text model of GLM-OCR: as that of GLM-4.1V, without biases. No torch."""

from __future__ import annotations

from functools import partial

from quire.families import glm4v
from quire.families.axes import read_with_axes
from quire.families.family import Family, sizes

READ_TEXT = partial(glm4v.read_text, kv_heads=8, biased=False)

FAMILY = Family(
    name="glm_ocr",
    architectures=("GlmOcrForConditionalGeneration",),
    model_types=("glm_ocr", "glm_ocr_text"),
    read=partial(read_with_axes, read=READ_TEXT, unsaid=glm4v.SECTIONS, interleaved=False),
    unsaid=sizes(59_392, 1024, 4096, 16, 16, 131_072),
    partial_rotary=True,
    names=glm4v.FAMILY.names,
    only={"attention_bias": (False,)},  # the class has none, whatever a config says
)
