"""Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen3.5: an image keeps its shape; its sides become multiples
of the patches of one token, within bounds of the area. A video is frames of one size, and a few
neighbouring frames become one group; Qwen3-VL and Qwen3.5 write the time before each group."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from quire.errors import InvalidPrompt
from quire.families.fields import MAX_COUNT, Fields
from quire.families.media.family import MOST_OF_ROW, MediaConfig, MediaFamily, check_same
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

if TYPE_CHECKING:
    from PIL.Image import Image

MOST_GROUPED = 64  # frames of a group: models have 2, and a group is filled up to its number
MOST_RATE = 1000.0  # frames per second
MOST_LEAST = 1 << 26  # pixels that small images are enlarged to: 200 MB
GIVEN_RATE = 2.0  # frames per second if frames came without a rate: that at which files are sampled


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapedImages(PaddedImages):
    """Patches of side `patch`; `merge` by `merge` of them are one token."""

    patch: int
    merge: int
    least: int  # pixels
    most: int

    def size(
        self, width: int, height: int, *, frames: int = 1, grouped: int = 1
    ) -> tuple[int, int]:
        """Width and height that an image is resized to. For several `frames` the bounds hold for
        all of them together, counted as `grouped` frames."""
        unit = self.patch * self.merge
        wide, high = round(width / unit) * unit, round(height / unit) * unit
        area = grouped * wide * high
        if area > self.most:
            shrink = sqrt(frames * height * width / self.most)
            high = max(unit, floor(height / shrink / unit) * unit)
            wide = max(unit, floor(width / shrink / unit) * unit)
        elif area < self.least:
            grow = sqrt(self.least / (frames * height * width))
            high, wide = ceil(height * grow / unit) * unit, ceil(width * grow / unit) * unit
        return wide, high

    def grouped(self, width: int, height: int, frames: int, times: int) -> tuple[int, int]:
        """As `size`, for frames of which `times` are one group; of a small one the shorter side
        becomes a token's first."""
        unit = self.patch * self.merge
        if min(width, height) < unit:
            scale = max(unit / height, unit / width)
            width, height = int(width * scale), int(height * scale)
        return self.size(width, height, frames=frames, grouped=round(frames / times) * times)

    def fitted(self, width: int, height: int) -> tuple[int, int]:
        """Width and height that an image by itself is resized to."""
        return self.size(width, height)

    def place(self, width: int, height: int, *, together: int) -> Placed:
        wide, high = self.fitted(width, height)
        unit = self.patch * self.merge
        grid = (1, high // unit, wide // unit)
        return Placed(self.pad, (grid[1] * grid[2],), grid)

    def num_bytes(self, width: int, height: int, *, together: int) -> int:
        wide, high = self.fitted(width, height)
        return 3 * wide * high

    def prepare(self, image: Image, *, together: int) -> dict[str, npt.NDArray[Any]]:
        size = self.fitted(*image.size)
        return {"pixels": np.ascontiguousarray(pixels_of(resized(image, *size, self.resample)))}


def read(config: MediaConfig) -> ShapedImages:
    pad = config.token("image_token_id", unsaid="<|image_pad|>")
    bounds = 56 * 56, 28 * 28 * 1280
    shape = shape_of(config, config.processor, pad, bounds, (CLIP_MEAN, CLIP_STD))
    return ShapedImages(**shape)


def shape_of(
    config: MediaConfig, said: Fields, pad: str, bounds: tuple[int, int], colours: tuple[Any, Any]
) -> dict[str, Any]:
    """The fields of ShapedImages. Defaults: `bounds` of an image's pixels, and `colours` (means,
    deviations)."""
    vision, (least, most) = config.model.inner("vision_config"), bounds
    patch = _agreed(said, "patch_size", vision, "patch_size", 14, MOST_OF_ROW)
    most_merged = MOST_OF_ROW // patch
    return {
        "pad": pad,
        "patch": patch,
        "merge": _agreed(said, "merge_size", vision, "spatial_merge_size", 2, most_merged),
        "least": _bound(config.asked, said, "min_pixels", "shortest_edge", least, MOST_LEAST),
        "most": _bound(config.asked, said, "max_pixels", "longest_edge", most, MAX_COUNT),
        "resample": filter_of(said, BICUBIC),
        "normalised": Normalised.of(said, *colours),
    }


def _bound(asked: Fields, said: Fields, key: str, edge: str, unsaid: int, largest: int) -> int:
    """What callers asked for counts before what files say, which have it under either name."""
    for fields in (asked, said):
        size = fields.inner("size") if fields.values.get("size") is not None else None
        if fields.values.get(key) is not None:
            if fields is asked and size is not None and size.count(edge) != fields.count(key):
                raise fields.wrong(key, f"the {edge} of size, which is given too")
            return fields.count(key, most=largest)
        if size is not None:
            return size.count(edge, most=largest)
    return unsaid


def grouped_of(said: Fields, vision: Fields) -> int:
    """How many frames are a group."""
    key = "temporal_patch_size"
    return _agreed(said, key, vision, key, 2, MOST_GROUPED)


def _agreed(said: Fields, key: str, vision: Fields, of: str, unsaid: int, most: int) -> int:
    """A size that both configs may name, the encoder's as `of`."""
    own = vision.count(of, unsaid, most=most)
    size = said.count(key, own, most=most)
    if vision.values.get(of) is not None:
        check_same(said, key, own, of=of)
    return size


@dataclass(frozen=True, slots=True)
class ShapedVideos:
    """Frames are resized by `images`; `times` frames are one group. Of a file `rate` frames per
    second are taken, from `fewest` to `most`. `ticks`: position steps per second; None: one step
    per group. `stamped`: the prompt has the time of each group, and bounds of the area hold for all
    frames."""

    images: ShapedImages
    times: int
    rate: float
    fewest: int
    most: int
    ticks: float | None
    stamped: bool
    two_way: bool = False

    @property
    def pad(self) -> str:
        return self.images.pad

    @property
    def placeholder(self) -> str:
        return self.images.pad

    @property
    def normalised(self) -> Normalised:
        return self.images.normalised

    def place(self, shape: VideoShape, *, together: int) -> Placed:
        chosen, unit = self.chosen(shape), self.images.patch * self.images.merge
        wide, high = self.size_of(shape, len(chosen))
        groups, rows = -(-len(chosen) // self.times), wide // unit * (high // unit)
        grid = (groups, high // unit, wide // unit)
        if self.stamped:
            text = "".join(map(self.group_text, self.stamps(shape, chosen)))
            return Placed(text, (rows,) * groups, grid)
        step = 1.0 if self.ticks is None else self.ticks * self.times / self._pace(shape, chosen)
        return Placed(self.pad, (groups * rows,), grid, step)

    def num_bytes(self, shape: VideoShape, *, together: int) -> int:
        count = len(self.chosen(shape))
        wide, high = self.size_of(shape, count)
        return 3 * count * wide * high

    def prepare(self, video: VideoFrames, *, together: int) -> dict[str, npt.NDArray[Any]]:
        """[frames, 3, height, width]"""
        chosen = self.chosen(video.shape)
        size = self.size_of(video.shape, len(chosen))
        frames = [
            pixels_of(resized(one, *size, self.images.resample)) for one in video.frames(chosen)
        ]
        return {"pixels": np.stack(frames)}

    def chosen(self, shape: VideoShape) -> list[int]:
        """Indices of the frames that are used: all given frames, or a selection of a file's."""
        if shape.sampled:
            return list(range(shape.frames))
        return self.sampled(shape.frames, shape.rate or GIVEN_RATE)

    def sampled(self, total: int, rate: float) -> list[int]:
        """Those of a file."""
        seconds = total / rate
        if self.stamped:
            count = min(max(int(seconds * self.rate), self.fewest), self.most, total)
            return [int(at) for at in np.linspace(0, total - 1, count).round()]
        most = min(self.most, total) // self.times * self.times
        wanted = min(max(seconds * self.rate, self.fewest), most)
        count = max(floor(wanted / self.times) * self.times, 1)
        return [int(at) for at in np.arange(0, total, total / count)]

    def size_of(self, shape: VideoShape, count: int) -> tuple[int, int]:
        if not self.stamped:
            return self.images.size(shape.width, shape.height)
        return self.images.grouped(shape.width, shape.height, count, self.times)

    def _pace(self, shape: VideoShape, chosen: list[int]) -> float:
        """Used frames per second."""
        if shape.rate is None:
            return GIVEN_RATE
        if shape.at is None or not shape.total:
            return shape.rate if shape.sampled else shape.rate * len(chosen) / shape.frames
        return shape.rate * len(chosen) / shape.total

    def stamps(self, shape: VideoShape, chosen: list[int]) -> list[float]:
        """A time for each group, in seconds."""
        if shape.rate is None:
            raise InvalidPrompt(
                "the video has no times, which this model's prompt names; pass (frames, "
                '{"fps": ...}), the number of frames in a second',
                parameter="multi_modal_data",
            )
        numbers = chosen if shape.at is None else [shape.at[one] for one in chosen]
        return self.times_of([number / shape.rate for number in numbers])

    def times_of(self, seconds: list[float]) -> list[float]:
        """From the times of frames those in the middle of each group."""
        seconds = seconds + seconds[-1:] * (-len(seconds) % self.times)
        firsts, lasts = seconds[:: self.times], seconds[self.times - 1 :: self.times]
        return [(first + last) / 2 for first, last in zip(firsts, lasts, strict=True)]

    def group_text(self, second: float) -> str:
        return f"<{second:.1f} seconds><|vision_start|>{self.pad}<|vision_end|>"


def reader(*, stamped: bool, ticked: bool) -> Any:
    """The function that reads the rules of a family."""

    def read(config: MediaConfig) -> ShapedVideos:
        said: Fields = config.videos
        if said.flag("cap_pixels_per_frame", False):
            raise said.wrong("cap_pixels_per_frame", "false")
        vision = config.model.inner("vision_config")
        pad = config.token("video_token_id", unsaid="<|video_pad|>")
        colours = (0.5, 0.5) if stamped else (CLIP_MEAN, CLIP_STD)
        token = 32 * 32 if stamped else 28 * 28
        shape = shape_of(config, said, pad, (128 * token, 768 * token), colours)
        ticks = float(vision.count("tokens_per_second", 4)) if ticked else None
        return ShapedVideos(
            images=ShapedImages(**shape),
            times=grouped_of(said, vision),
            rate=said.positive("fps", GIVEN_RATE, most=MOST_RATE),
            fewest=said.count("min_frames", 4),
            most=said.count("max_frames", 768),
            ticks=ticks,
            stamped=stamped,
        )

    return read


OPTIONS = ("min_pixels", "max_pixels", "size", "fps", "min_frames", "max_frames")
FAMILIES = tuple(
    MediaFamily(
        name=name,
        architectures=(f"{model}ForConditionalGeneration",),
        read=read,
        read_videos=reader(stamped=stamped, ticked=ticked),
        module=f"{model}Model",
        options=OPTIONS,
        three_axes=True,
        in_text="<|vision_start|><|image_pad|><|vision_end|>",
        videos_in_text="<|vision_start|><|video_pad|><|vision_end|>",
    )
    for name, model, stamped, ticked in (
        ("qwen2_vl", "Qwen2VL", False, False),
        ("qwen2_5_vl", "Qwen2_5_VL", False, True),
        ("qwen3_vl", "Qwen3VL", True, False),
        ("qwen3_vl_moe", "Qwen3VLMoe", True, False),
        ("qwen3_5", "Qwen3_5", True, False),
        ("qwen3_5_moe", "Qwen3_5Moe", True, False),
    )
)
