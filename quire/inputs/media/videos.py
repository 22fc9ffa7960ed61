"""Videos as callers pass them: frames, or a file from which frames are decoded when needed.

Frames are Pillow images or arrays of one size, and all of them are used. The caller may add what is
known of their times: {"fps": 24.0, "frames_indices": [0, 12, ...], "total_num_frames": 480}.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from quire.families.media.rules import VideoShape
from quire.inputs.media.allowed import MediaOptions, bad_medium
from quire.inputs.media.children import MediaChildren
from quire.inputs.media.files import allowed_file, read_file
from quire.inputs.media.identity import content_hash
from quire.inputs.media.images import (
    ArrayImage,
    ImageSource,
    OpenImage,
    checked_size,
    images,
    is_pillow,
)

if TYPE_CHECKING:
    from PIL.Image import Image

MOST_BYTES = 256 << 20  # of a file
MOST_FRAMES = 2048  # that a caller may pass
MOST_PIXELS = 1 << 30  # of all frames that a caller passes
MOST_SECONDS = 3600
MOST_DECODED = 1 << 38  # pixels of all frames of a file: an hour of 1920 x 1080 at 30 in a second
MOST_RATE = 1000.0
PIXELS_A_SECOND = 1e8  # even a slow processor decodes this many
bad = partial(bad_medium, "video")


@dataclass(frozen=True, slots=True, eq=False)
class FrameVideo:
    images: tuple[ImageSource, ...]
    content: bytes
    shape: VideoShape

    @classmethod
    def of(cls, frames: Sequence[Any], about: Mapping[str, Any]) -> FrameVideo:
        if not 1 <= len(frames) <= MOST_FRAMES:
            raise bad(f"has {len(frames)} frames; from 1 to {MOST_FRAMES:,} are read")
        images = tuple(_frame(one) for one in frames)
        sizes = {one.size for one in images}
        if len(sizes) > 1:
            raise bad(f"has frames of different sizes: {sorted(sizes)[:3]}")
        ((width, height),) = sizes
        if len(images) * width * height > MOST_PIXELS:
            raise bad(f"has more than {MOST_PIXELS:,} pixels in all")
        rate, at, total = _times(about, len(images))
        shape = VideoShape(len(images), width, height, rate, at, total, sampled=True)
        content = content_hash(b"frames", b"".join(one.content for one in images))
        return cls(images, content, shape)

    @property
    def size(self) -> tuple[VideoShape]:
        return (self.shape,)

    def open(self) -> FrameVideo:
        return self

    def frames(self, wanted: Sequence[int]) -> Iterator[Image]:
        return (self.images[one].open() for one in wanted)


@dataclass(frozen=True, slots=True)
class FileVideo:
    """A video in bytes, or in a file, which is read again when frames are needed."""

    data: bytes | Path
    content: bytes
    shape: VideoShape
    children: MediaChildren

    @classmethod
    def of(cls, data: bytes | Path, children: MediaChildren) -> FileVideo:
        raw = data if isinstance(data, bytes) else read_file(data, MOST_BYTES)
        if len(raw) > MOST_BYTES:
            raise bad(f"has {len(raw):,} bytes; at most {MOST_BYTES:,} are read")
        content = content_hash(b"video", raw)
        found = children.header("video", raw, content)
        frames, (width, height) = found["frames"], checked_size(*found["size"], kind="video")
        if frames * width * height > MOST_DECODED:
            raise bad(
                f"has {frames:,} frames of {width} x {height}; at most {MOST_DECODED:,} pixels in "
                "all are decoded"
            )
        shape = VideoShape(frames, width, height, found["rate"], None, frames, sampled=False)
        return cls(data, content, shape, children)

    @property
    def size(self) -> tuple[VideoShape]:
        return (self.shape,)

    def open(self) -> FileVideo:
        return self

    def frames(self, wanted: Sequence[int]) -> Iterator[Image]:
        raw = self.data if isinstance(self.data, bytes) else read_file(self.data, MOST_BYTES)
        if content_hash(b"video", raw) != self.content:
            raise bad("changed while the prompts were computed")
        shape, chosen, seen = self.shape, sorted(set(wanted)), 0
        seconds = (chosen[-1] + 1) * shape.width * shape.height / PIXELS_A_SECOND
        for pixels in self.children.ask("video", "frames", raw, seconds=seconds, wanted=chosen):
            if pixels.shape != (shape.height, shape.width, 3):
                raise bad(f"has frames of other sizes than {shape.width} x {shape.height}")
            seen += 1
            yield images().fromarray(pixels)
        if seen != len(chosen):
            raise bad(f"is cut short: its header says {shape.frames:,} frames")


def listed_videos(value: Any) -> list[Any]:
    """The videos in `value`. A list of frames is one video, and so is (frames, {"fps": ...})."""
    if isinstance(value, np.ndarray):
        return list(value) if value.ndim == 5 else [value]
    if not isinstance(value, list | tuple) or _is_pair(value):
        return [value]
    first = value[0] if len(value) else None
    return [value] if is_pillow(first) or getattr(first, "ndim", 0) == 3 else list(value)


def read_video(
    given: Any, options: MediaOptions, children: MediaChildren
) -> FrameVideo | FileVideo:
    if isinstance(given, bytes | bytearray | memoryview):
        return FileVideo.of(bytes(given), children)
    if isinstance(given, Path):
        return FileVideo.of(allowed_file(str(given), options.folder), children)
    frames, about = given if isinstance(given, list | tuple) and _is_pair(given) else (given, {})
    if isinstance(frames, np.ndarray) and frames.ndim == 4:
        return FrameVideo.of(list(frames), about)
    if isinstance(frames, list | tuple):
        return FrameVideo.of(frames, about)
    raise bad(
        f"is a {type(frames).__name__}; pass a list of Pillow images, an array [frames, height, "
        'width, 3] of bytes, (frames, {"fps": ...}), the bytes of a file, or a pathlib.Path'
    )


def _is_pair(value: list[Any] | tuple[Any, ...]) -> bool:
    return len(value) == 2 and isinstance(value[1], Mapping)


def _frame(given: Any) -> ImageSource:
    if is_pillow(given):
        return OpenImage.of(given)
    if isinstance(given, np.ndarray):
        return ArrayImage.of(given)
    raise bad(f"has a frame that is a {type(given).__name__}; pass Pillow images or arrays")


def _times(
    about: Mapping[str, Any], count: int
) -> tuple[float | None, tuple[int, ...] | None, int | None]:
    """The frames per second, each frame's index in the whole video, and that video's frame
    count."""
    rate, at, total = (about.get(key) for key in ("fps", "frames_indices", "total_num_frames"))
    if rate is not None and (
        isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate <= MOST_RATE
    ):
        raise bad(f"has the fps {rate!r}; it is a number of frames in a second")
    if at is not None:
        if not isinstance(at, list | tuple | np.ndarray):
            raise bad(f"has the frames_indices {at!r}; they are a list of whole numbers")
        at = tuple(_whole("frames_indices", one) for one in at)
        if len(at) != count or any(b < a for a, b in zip(at, at[1:], strict=False)):
            raise bad(f"has {len(at)} frames_indices for {count} frames, or some go back")
    if total is not None:
        total = _whole("total_num_frames", total)
    return (None if rate is None else float(rate)), at, total


def _whole(name: str, given: Any) -> int:
    if isinstance(given, bool) or not isinstance(given, int | np.integer) or given < 0:
        raise bad(f"has {given!r} in its {name}; numbers of frames are whole, from 0 on")
    return int(given)
