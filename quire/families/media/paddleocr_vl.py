"""PaddleOCR-VL: images as those of Qwen's models; of a small one each side grows to a token's."""

from __future__ import annotations

from dataclasses import dataclass

from quire.families.media.family import MediaConfig, MediaFamily
from quire.families.media.qwen_vl import ShapedImages, shape_of
from quire.families.media.rules import CLIP_MEAN, CLIP_STD

BOUNDS = 384 * 384, 1536 * 1536  # pixels


@dataclass(frozen=True, slots=True, kw_only=True)
class GrownImages(ShapedImages):
    def fitted(self, width: int, height: int) -> tuple[int, int]:
        unit = self.patch * self.merge
        if height < unit:
            width, height = round(width * unit / height), unit
        if width < unit:
            width, height = unit, round(height * unit / width)
        return self.size(width, height)


def read(config: MediaConfig) -> GrownImages:
    pad = config.token("image_token_id", unsaid="<|IMAGE_PLACEHOLDER|>")
    shape = shape_of(config, config.processor, pad, BOUNDS, (CLIP_MEAN, CLIP_STD))
    return GrownImages(**shape)


FAMILY = MediaFamily(
    name="paddleocr_vl",
    architectures=("PaddleOCRVLForConditionalGeneration",),
    module="PaddleOCRVLModel",
    read=read,
    options=("min_pixels", "max_pixels", "size"),
    three_axes=True,
    in_text="<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>",
)
