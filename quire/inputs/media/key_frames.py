"""Finds frames of a video from key frames, without decoding all frames before them.

Frames are numbered in the order in which they are shown. Where each packet is one frame with a time
of its own, the times of all packets, which are read without decoding, give each frame's number.
Decoding may then begin at any key frame: a frame that is shown after it must be the same as when
the video is decoded from its start. If that is not certain, `Unsure` is raised and the caller
decodes from the start. Damage before a key frame is not noticed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

# In these formats every packet has a time; with these codecs every packet is a frame.
_FORMATS = ("mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm")
_CODECS = ("h264", "hevc", "vp9", "av1", "libdav1d")
_LEAST_GAP = 24  # unwanted frames; decoding fewer is faster than reading the times of all packets


class Unsure(Exception):
    """The frames after a key frame may differ from those decoded from the start."""


@dataclass(frozen=True, slots=True)
class _Times:
    """Sorted times of frames (in the stream's units), their numbers, and those of key frames."""

    shown: list[int]
    numbers: dict[int, int]
    keys: list[int]

    @classmethod
    def of(cls, container: Any, stream: Any) -> _Times:
        packets = [one for one in container.demux(stream) if one.size and not one.is_discard]
        times = [one.pts for one in packets]
        if not times or None in times or len({*times}) < len(times):
            raise Unsure
        if times[0] != min(times) or not packets[0].is_keyframe:
            raise Unsure  # frames shown before the first key frame are not decoded
        shown = sorted(times)
        numbers = {time: number for number, time in enumerate(shown)}
        return cls(shown, numbers, sorted(numbers[one.pts] for one in packets if one.is_keyframe))


def sought_frames(container: Any, wanted: Sequence[int]) -> Iterator[Any]:
    """Yield these frames, in order. Raise Unsure as soon as one may be the wrong frame."""
    stream = container.streams.video[0]
    steps = zip([-1, *wanted], wanted, strict=False)
    if (
        container.format.name not in _FORMATS
        or stream.codec_context.name not in _CODECS
        or max(after - before for before, after in steps) <= _LEAST_GAP
    ):
        raise Unsure
    times = _Times.of(container, stream)
    frames: Iterator[tuple[int, Any]] = iter(())
    following = -1  # the number of the next frame to be decoded
    for number in wanted:
        key = times.keys[bisect_right(times.keys, number) - 1]
        if following < 0 or key > following:
            container.seek(times.shown[key], stream=stream)
            frames = _from_key_frame(container, stream, times, number)
        for following, frame in frames:
            if following == number:
                yield frame
                break
        else:
            raise Unsure
        following += 1


def _from_key_frame(
    container: Any, stream: Any, times: _Times, wanted: int
) -> Iterator[tuple[int, Any]]:
    """Yield frames with numbers from the current place, a key frame at or before `wanted`, on."""
    first = due = -1  # the numbers of the key frame and of the next frame
    for packet in container.demux(stream):
        if due < 0:
            first = due = times.numbers.get(packet.pts, wanted + 1)
            if not packet.is_keyframe or due > wanted:
                raise Unsure
        for frame in packet.decode():
            wrong = times.numbers.get(frame.pts) != due or frame.is_corrupt
            if wrong or (due == first and not frame.key_frame):
                raise Unsure
            yield due, frame
            due += 1
