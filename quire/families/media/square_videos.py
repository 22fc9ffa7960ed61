"""Videos of LLaVA-OneVision: each frame is a square with a quarter of an image's rows, and one more
row follows all frames."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from quire.families.media.family import MOST_SIDE, MediaConfig
from quire.families.media.pixels import BICUBIC, filter_of, pixels_of, resized
from quire.families.media.rules import (
    CLIP_MEAN,
    CLIP_STD,
    Normalised,
    PaddedImages,
    Placed,
    VideoFrames,
    VideoShape,
)

MOST_FRAMES = 32  # default for a file, as in vLLM


@dataclass(frozen=True, slots=True, kw_only=True)
class SquareVideos(PaddedImages):
    """Frames of side `side`, each with lines of `patches` rows before these are halved. Of a file
    at most `most` frames are taken, evenly spaced."""

    side: int
    patches: int
    most: int

    def place(self, shape: VideoShape, *, together: int) -> Placed:
        line = -(-self.patches // 2)
        return Placed(self.pad, (len(self._chosen(shape)) * line**2 + 1,))

    def num_bytes(self, shape: VideoShape, *, together: int) -> int:
        return 3 * len(self._chosen(shape)) * self.side**2

    def prepare(self, video: VideoFrames, *, together: int) -> dict[str, npt.NDArray[Any]]:
        """[frames, 3, side, side]"""
        frames = video.frames(self._chosen(video.shape))
        made = [pixels_of(resized(one, self.side, self.side, self.resample)) for one in frames]
        return {"pixels": np.stack(made)}

    def _chosen(self, shape: VideoShape) -> list[int]:
        """Indices of the frames that are used: all given frames, or a selection of a file's."""
        if shape.sampled:
            return list(range(shape.frames))
        count = min(self.most, shape.frames)
        return [int(at) for at in np.linspace(0, shape.frames - 1, count)]


def read(config: MediaConfig) -> SquareVideos:
    said, vision = config.videos, config.model.inner("vision_config")
    side = vision.count("image_size", 384, most=MOST_SIDE // 2)  # of many frames
    config.check_patch(patch := vision.count("patch_size", 14))
    if side < patch:
        raise vision.wrong("image_size", f"at least {patch}, the side of a patch")
    return SquareVideos(
        pad=config.token("video_token_index", "video_token_id", unsaid="<video>"),
        side=side,
        patches=side // patch,
        resample=filter_of(said, BICUBIC),
        normalised=Normalised.of(said, CLIP_MEAN, CLIP_STD),
        most=said.count("num_frames", MOST_FRAMES),
    )
