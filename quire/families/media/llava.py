"""LLaVA 1.5: an image is cropped or stretched to one square, with a fixed number of rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from quire.families.media.family import MediaConfig, MediaFamily
from quire.families.media.pixels import (
    BICUBIC,
    centre_cropped,
    check_enlarged,
    filter_of,
    pixels_of,
    resized,
    squared,
    with_shortest_edge,
)
from quire.families.media.rules import (
    CLIP_MEAN,
    CLIP_STD,
    Normalised,
    PaddedImages,
    Placed,
    background_of,
)

if TYPE_CHECKING:
    from PIL.Image import Image

_KEPT = "vision_feature_select_strategy"
_OWN_PROCESSOR = "Llava"
CLIP_SIDE = 224  # of images, where a processor's config says nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class LlavaImages(PaddedImages):
    """`edge`: new length of the shorter side, or of both if `stretched`. `crop`: side of the square
    that is cut from the middle, with `count` rows."""

    edge: int
    stretched: bool
    crop: int
    count: int
    background: tuple[int, ...] | None  # colour of a square behind the image

    def place(self, width: int, height: int, *, together: int) -> Placed:
        side = max(width, height)
        if self.background is not None:
            check_enlarged((width, height), (side, side))
        elif not self.stretched:
            check_enlarged((width, height), with_shortest_edge(width, height, self.edge))
        return Placed(self.pad, (self.count,))

    def num_bytes(self, width: int, height: int, *, together: int) -> int:
        return 3 * self.crop**2

    def prepare(self, image: Image, *, together: int) -> dict[str, npt.NDArray[Any]]:
        if self.background is not None:
            image = squared(image, self.background)
        size = (self.edge, self.edge)
        if not self.stretched:
            size = with_shortest_edge(*image.size, self.edge)
        pixels = pixels_of(resized(image, *size, self.resample))
        return {"pixels": centre_cropped(pixels, self.crop, self.crop)[None]}


def read(config: MediaConfig) -> LlavaImages:
    said, vision = config.processor, config.model.inner("vision_config")
    # SigLIP's processor has other defaults than CLIP's, and neither of them pads.
    kind = said.word("image_processor_type", said.word("feature_extractor_type", _OWN_PROCESSOR))
    is_siglip = kind.startswith("Siglip")
    mean, std = (0.5, 0.5) if is_siglip else (CLIP_MEAN, CLIP_STD)
    edge, size = config.side("size", CLIP_SIDE, "shortest_edge"), said.values.get("size")
    stretched = is_siglip if size is None else "shortest_edge" not in _named(size)
    crop = edge
    if said.flag("do_center_crop", not is_siglip):
        if is_siglip and "crop_size" not in said.values:
            raise said.wrong("do_center_crop", "false where crop_size is left out")
        crop = config.side("crop_size", CLIP_SIDE)
    elif not stretched:
        raise said.wrong("do_center_crop", "true where size has a shortest_edge")
    pads = kind.startswith(_OWN_PROCESSOR) and said.flag("do_pad", False)
    key = "crop_size" if "crop_size" in said.values else "size"
    config.check_patch(patch := vision.count("patch_size", 14))
    patches = config.patches_along(crop, patch, key) ** 2
    count = patches + num_more_rows(config, "clip", "default")
    if count < 1:
        rule = "'full': without its first row a square of one patch has none"
        raise config.model.wrong(_KEPT, rule)
    return LlavaImages(
        pad=config.token("image_token_index", "image_token_id", unsaid="<image>"),
        edge=edge,
        stretched=stretched,
        crop=crop,
        resample=filter_of(said, BICUBIC),
        count=count,
        background=background_of(said, mean) if pads else None,
        normalised=Normalised.of(said, mean, std),
    )


def _named(size: Any) -> Mapping[str, Any]:
    """What a size says by name: a number alone is the shortest edge."""
    said = size if isinstance(size, Mapping) else {"shortest_edge": size}
    return {name: value for name, value in said.items() if value is not None}


def num_more_rows(config: MediaConfig, tower: str, kept: str) -> int:
    """How many more rows than patches a square has. All towers but SigLIP's have one row for the
    whole square first; "default" drops the first row. `tower` and `kept` are defaults."""
    kind = config.model.inner("vision_config").word("model_type", tower)
    if (kept := config.model.word(_KEPT, kept)) not in ("default", "full"):
        raise config.model.wrong(_KEPT, "'default' or 'full'")
    return (0 if kind.startswith("siglip") else 1) - (1 if kept == "default" else 0)


FAMILY = MediaFamily(
    name="llava", architectures=("LlavaForConditionalGeneration",), read=read, module="LlavaModel"
)
