"""GLM-4.1V and its successors: images as those of Qwen's models, of which each counts as the frames
of one group where its area is bounded. Videos: see glm_videos.py."""

from __future__ import annotations

from dataclasses import dataclass

from quire.families.media.family import MediaConfig, MediaFamily
from quire.families.media.glm_videos import OPTIONS, known, reader
from quire.families.media.qwen_vl import ShapedImages, grouped_of, shape_of
from quire.families.media.rules import CLIP_MEAN, CLIP_STD

BOUNDS = 112 * 112, 28 * 28 * 15_000  # pixels of all frames together


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedImages(ShapedImages):
    """An image counts as `times` frames, which are one group."""

    times: int

    def fitted(self, width: int, height: int) -> tuple[int, int]:
        return self.grouped(width, height, self.times, self.times)


def read(config: MediaConfig) -> GroupedImages:
    vision, said = config.model.inner("vision_config"), known(config.processor)
    pad = config.token("image_token_id", unsaid="<|image|>")
    times = grouped_of(said, vision)
    shape = shape_of(config, said, pad, BOUNDS, (CLIP_MEAN, CLIP_STD))
    return GroupedImages(**shape, times=times)


FAMILIES = tuple(
    MediaFamily(
        name=name,
        architectures=(f"{model}ForConditionalGeneration",),
        module=f"{model}Model",
        read=read,
        read_videos=reader(processor),
        options=("size", *OPTIONS),
        three_axes=True,
        in_text="<|begin_of_image|><|image|><|end_of_image|>",
        videos_in_text="<|begin_of_video|><|video|><|end_of_video|>",
    )
    for name, model, processor in (
        ("glm4v", "Glm4v", "Glm4v"),
        ("glm4v_moe", "Glm4vMoe", "Glm4v"),
        ("glm46v", "Glm46V", "Glm46V"),
        ("glm_ocr", "GlmOcr", "Glm46V"),
    )
)
