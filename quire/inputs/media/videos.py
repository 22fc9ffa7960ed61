"""Videos as callers pass them: frames, or a file of which some frames are decoded when needed.

Frames are Pillow images or arrays, all of one size, and are all taken; with them may come what is
known of their times: {"fps": 24.0, "frames_indices": [0, 12, ...], "total_num_frames": 480}.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from quire.errors import InvalidPrompt, NotSupported
from quire.families.media.rules import VideoShape
from quire.inputs.media.allowed import MediaOptions
from quire.inputs.media.files import allowed_file, read_file
from quire.inputs.media.identity import content_hash
from quire.inputs.media.images import (
    ArrayImage,
    ImageSource,
    OpenImage,
    checked_size,
    is_pillow,
)
from quire.inputs.media.urls import MediaUrl

if TYPE_CHECKING:
    from PIL.Image import Image

MOST_BYTES = 256 << 20  # of a file
MOST_FRAMES = 2048  # that are given
MOST_PIXELS = 1 << 30  # of all frames that are given
MOST_SECONDS = 3600
MOST_DECODED = 1 << 38  # pixels of all frames of a file: an hour of 1920 x 1080 at 30 in a second
MOST_RATE = 1000.0
# Formats that hold their pictures themselves: a playlist would name other files, and hosts.
_FORMATS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,ogg,mpegts,mpeg,flv,asf,gif"
_ALONE = {"format_whitelist": _FORMATS, "protocol_whitelist": "none"}


@dataclass(frozen=True, slots=True, eq=False)
class FrameVideo:
    """Frames that were given."""

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
    """A video in bytes, or in a file that is read again when it is opened."""

    data: bytes | Path
    content: bytes
    shape: VideoShape

    @classmethod
    def of(cls, data: bytes | Path) -> FileVideo:
        raw = data if isinstance(data, bytes) else read_file(data, MOST_BYTES)
        if len(raw) > MOST_BYTES:
            raise bad(f"has {len(raw):,} bytes; at most {MOST_BYTES:,} are read")
        with _opened(raw) as container:
            shape = _shape(container)
        return cls(data, content_hash(b"video", raw), shape)

    @property
    def size(self) -> tuple[VideoShape]:
        return (self.shape,)

    def open(self) -> FileVideo:
        return self

    def frames(self, wanted: Sequence[int]) -> Iterator[Image]:
        raw = self.data if isinstance(self.data, bytes) else read_file(self.data, MOST_BYTES)
        if content_hash(b"video", raw) != self.content:
            raise bad("changed while the prompts were computed")
        size, chosen, seen = (self.shape.width, self.shape.height), set(wanted), 0
        with _opened(raw) as container:
            for number, frame in enumerate(_decoded(container)):
                if number in chosen:
                    seen += 1
                    checked_size(frame.width, frame.height)
                    image: Image = frame.to_image()
                    if image.size != size:
                        raise bad(f"has frames of {image.size} and of {size} pixels")
                    yield image
                if number >= max(chosen):
                    break
        if seen != len(chosen):
            raise bad(f"is cut short: its header says {self.shape.frames:,} frames")


def listed_videos(value: Any) -> list[Any]:
    """One video or several: a list of frames is one, and so is (frames, {"fps": ...})."""
    if isinstance(value, np.ndarray):
        return list(value) if value.ndim == 5 else [value]
    if not isinstance(value, list | tuple) or _is_pair(value):
        return [value]
    first = value[0] if len(value) else None
    return [value] if is_pillow(first) or getattr(first, "ndim", 0) == 3 else list(value)


def read_video(given: Any, options: MediaOptions) -> FrameVideo | FileVideo:
    if isinstance(given, bytes | bytearray | memoryview):
        return FileVideo.of(bytes(given))
    if isinstance(given, MediaUrl):
        return FileVideo.of(given.read(options.folder, options.hosts, MOST_BYTES))
    if isinstance(given, Path):
        return FileVideo.of(allowed_file(str(given), options.folder))
    frames, about = given if isinstance(given, list | tuple) and _is_pair(given) else (given, {})
    if isinstance(frames, np.ndarray) and frames.ndim == 4:
        return FrameVideo.of(list(frames), about)
    if isinstance(frames, list | tuple):
        return FrameVideo.of(frames, about)
    raise bad(
        f"is a {type(frames).__name__}; pass a list of Pillow images, an array [frames, height, "
        'width, 3] of bytes, (frames, {"fps": ...}), the bytes of a file, or a pathlib.Path'
    )


def bad(why: str) -> InvalidPrompt:
    return InvalidPrompt(f"the video {why}", parameter="multi_modal_data")


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
    """Frames in a second, the number of each among those of the whole video, and how many that
    has."""
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


def _opened(raw: bytes) -> Any:
    try:
        import av
    except ImportError:
        raise NotSupported(
            "video files need the package av: pip install 'quire-llm[video]'; frames do not"
        ) from None
    try:
        return av.open(io.BytesIO(raw), metadata_errors="ignore", container_options=_ALONE)
    except (av.FFmpegError, ValueError) as error:
        raise bad(f"cannot be opened: {str(error)[:200]}") from None


def _shape(container: Any) -> VideoShape:
    """What the header says, or its packets; nothing is decoded."""
    if not container.streams.video:
        raise bad("holds no pictures")
    stream = container.streams.video[0]
    rate = float(stream.average_rate or 0)
    if not 0 < rate <= MOST_RATE:
        raise bad(f"has {rate:g} frames in a second; at most {MOST_RATE:g} are read")
    frames = stream.frames or _packets(container)  # some formats do not say
    if frames < 1:
        raise bad("holds no frames")
    if frames / rate > MOST_SECONDS:
        raise bad(f"lasts {frames / rate:,.0f} s; at most {MOST_SECONDS:,} s are read")
    width, height = checked_size(stream.width, stream.height)
    if frames * width * height > MOST_DECODED:
        raise bad(
            f"has {frames:,} frames of {width} x {height}; at most {MOST_DECODED:,} pixels in all "
            "are decoded"
        )
    return VideoShape(frames, width, height, rate, None, frames, sampled=False)


def _packets(container: Any) -> int:
    import av

    try:
        return sum(1 for packet in container.demux(video=0) if packet.size)
    except (av.FFmpegError, ValueError) as error:
        raise bad(f"cannot be read: {str(error)[:200]}") from None


def _decoded(container: Any) -> Iterator[Any]:
    import av

    try:
        yield from container.decode(video=0)
    except (av.FFmpegError, ValueError) as error:
        raise bad(f"cannot be read: {str(error)[:200]}") from None
