"""GLM-4.1V and its successors: images as those of Qwen's models, of which each counts as the frames
of one group where its area is bounded. Videos are not read."""

from __future__ import annotations

from dataclasses import dataclass

from quire.families.fields import Fields
from quire.families.media.family import MediaConfig, MediaFamily
from quire.families.media.qwen_vl import ShapedImages, shape_of
from quire.families.media.rules import CLIP_MEAN, CLIP_STD

BOUNDS = 112 * 112, 28 * 28 * 15_000  # pixels of all frames together
NOT_READ = ("min_pixels", "max_pixels")  # other names of bounds, which this processor has not


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedImages(ShapedImages):
    """An image counts as `times` frames, which are one group."""

    times: int

    def fitted(self, width: int, height: int) -> tuple[int, int]:
        return self.grouped(width, height, self.times, self.times)


def read(config: MediaConfig) -> GroupedImages:
    whole, vision = config.processor, config.model.inner("vision_config")
    known = {key: value for key, value in whole.values.items() if key not in NOT_READ}
    said = Fields(known, whole.source, false_nulls=whole.false_nulls)
    pad = config.token("image_token_id", unsaid="<|image|>")
    times = said.count("temporal_patch_size", vision.count("temporal_patch_size", 2))
    shape = shape_of(config, said, pad, BOUNDS, (CLIP_MEAN, CLIP_STD))
    return GroupedImages(**shape, times=times)


FAMILIES = tuple(
    MediaFamily(
        name=name,
        architectures=(f"{model}ForConditionalGeneration",),
        module=f"{model}Model",
        read=read,
        options=("size",),
        three_axes=True,
        in_text="<|begin_of_image|><|image|><|end_of_image|>",
    )
    for name, model in (
        ("glm4v", "Glm4v"),
        ("glm4v_moe", "Glm4vMoe"),
        ("glm46v", "Glm46V"),
        ("glm_ocr", "GlmOcr"),
    )
)
