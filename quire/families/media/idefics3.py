"""Idefics3 and SmolVLM: an image is enlarged and cut into square tiles, followed by the whole image
as one tile. Tokens name the row and column of each tile."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from quire.families.fields import MAX_COUNT
from quire.families.media.family import MediaConfig, MediaFamily
from quire.families.media.pixels import LANCZOS, filter_of, pixels_of, resized
from quire.families.media.rules import Normalised, PaddedImages, Placed

if TYPE_CHECKING:
    from PIL.Image import Image

LARGEST = 4096  # longest side in pixels
AROUND, WHOLE = "<fake_token_around_image>", "<global-img>"


@dataclass(frozen=True, slots=True, kw_only=True)
class TiledImages(PaddedImages):
    """`edge`: new length of the longer side; `tile`: side of a tile, with `count` rows each."""

    edge: int
    tile: int
    count: int
    splits: bool

    def sizes(self, width: int, height: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """The two sizes (width, height) to which an image is resized in turn; tiles fill the
        second."""
        first = _below(*_with_longer(width, height, self.edge), LARGEST)
        if not self.splits:
            return first, (self.tile, self.tile)
        wide, high = first
        ratio, tile = wide / high, self.tile
        if wide >= high:
            wide = ceil(wide / tile) * tile
            high = ceil(int(wide / ratio) / tile) * tile
        else:
            high = ceil(high / tile) * tile
            wide = ceil(int(high * ratio) / tile) * tile
        return first, (wide, high)

    def grid(self, width: int, height: int) -> tuple[int, int]:
        """Rows and columns of tiles; (0, 0) if the image fits into one."""
        _, (wide, high) = self.sizes(width, height)
        if wide <= self.tile and high <= self.tile:
            return 0, 0
        return high // self.tile, wide // self.tile

    def place(self, width: int, height: int, *, together: int) -> Placed:
        rows, columns = self.grid(width, height)
        text = ""
        for row in range(rows):
            for column in range(columns):
                text += f"{AROUND}<row_{row + 1}_col_{column + 1}>{self.pad}"
            text += "\n"
        text += "\n" if rows else ""
        text += f"{AROUND}{WHOLE}{self.pad}{AROUND}"
        return Placed(text, (self.count,) * (rows * columns + 1))

    def num_bytes(self, width: int, height: int, *, together: int) -> int:
        rows, columns = self.grid(width, height)
        return 3 * self.tile**2 * (rows * columns + 1)

    def prepare(self, image: Image, *, together: int) -> dict[str, npt.NDArray[Any]]:
        rows, columns = self.grid(*image.size)
        first, second = self.sizes(*image.size)
        for size in (first, second):
            image = resized(image, *size, self.resample)
        if not rows:
            return {"pixels": pixels_of(image)[None]}
        tile, pixels = self.tile, pixels_of(image)
        cut = pixels.reshape(3, rows, tile, columns, tile).transpose(1, 3, 0, 2, 4)
        whole = pixels_of(resized(image, tile, tile, self.resample))
        return {"pixels": np.concatenate([cut.reshape(-1, 3, tile, tile), whole[None]])}


def _with_longer(width: int, height: int, edge: int) -> tuple[int, int]:
    """The longer side becomes `edge`, the other stays in proportion and is even."""
    ratio = width / height
    if width >= height:
        shorter = int(edge / ratio)
        return edge, max(shorter + shorter % 2, 1)
    shorter = int(edge * ratio)
    return max(shorter + shorter % 2, 1), edge


def _below(width: int, height: int, most: int) -> tuple[int, int]:
    ratio = width / height
    if width >= height and width > most:
        width, height = most, int(most / ratio)
    elif height > width and height > most:
        width, height = int(most * ratio), most
    return max(width, 1), max(height, 1)


def read(config: MediaConfig) -> TiledImages:
    said, vision = config.processor, config.model.inner("vision_config")
    tile = config.side("max_image_size", 364, "longest_edge")
    patch, whole = vision.count("patch_size", 32), vision.count("image_size", tile)
    config.check_patch(patch)
    patches = config.patches_along(tile, patch, "max_image_size")
    if patches != whole // patch:
        raise said.wrong("max_image_size", f"{whole}, the side of what the encoder takes")
    scale = config.model.count("scale_factor", 2, most=patches)
    return TiledImages(
        pad=config.token("image_token_id", unsaid="<image>"),
        edge=config.side("size", 4 * 364, "longest_edge", number=False, most=MAX_COUNT),
        tile=tile,
        count=patches**2 // scale**2,
        splits=said.flag("do_image_splitting", True),
        resample=filter_of(said, LANCZOS),
        normalised=Normalised.of(said, 0.5, 0.5),
    )


OPTIONS = ("do_image_splitting", "size", "max_image_size")
FAMILY = MediaFamily(
    name="idefics3",
    architectures=("Idefics3ForConditionalGeneration",),
    read=read,
    module="Idefics3Model",
    options=OPTIONS,
    embedded=False,
)
SMOLVLM = MediaFamily(
    name="smolvlm",
    architectures=("SmolVLMForConditionalGeneration",),
    read=read,
    module="SmolVLMModel",
    options=OPTIONS,
    embedded=False,
)
