"""Frames that are found from key frames are those that come from the start, bit by bit, in whatever
container; where that is not sure they are decoded from the start."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest

from quire.errors import InvalidPrompt
from quire.inputs.media import key_frames, video_files

av: Any = pytest.importorskip("av")
COUNT, GROUP = 240, 30
EVEN = [40 * number for number in range(COUNT)]
WANTED = ([239], [0, 60, 61, 170], [29, 30, 125, 239], [100, 200], [5, 90, 91, 92, 235])


def encoded(kind: str, codec: str, times: Sequence[int] = EVEN, **how: str) -> bytes:
    """Frames that move and all differ, at these thousandths of a second."""
    options = {key: how.pop(key) for key in ("movflags", "live") if key in how}
    noise = np.random.default_rng(0).integers(0, 90, (48, 64, 3), np.uint8)
    file = io.BytesIO()
    with av.open(file, "w", format=kind, options=options) as container:
        stream = container.add_stream(codec, rate=25, options=how)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        stream.codec_context.gop_size = GROUP
        stream.codec_context.time_base = Fraction(1, 1000)
        for number, time in enumerate(times):
            shade = np.roll(noise, number, 1) + np.uint8(number * 150 // len(times))
            frame = av.VideoFrame.from_ndarray(shade, format="rgb24")
            frame.pts, frame.time_base = time, Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return file.getvalue()


def with_sync_samples(data: bytes, numbers: Sequence[int]) -> bytes:
    """An mp4 whose index says that these are its key frames (stss), as many as it had."""
    at = data.index(b"stss") + 8
    (count,) = struct.unpack(">I", data[at : at + 4])
    said = struct.pack(f">{count}I", *[*numbers][:count])
    return data[: at + 4] + said + data[at + 4 + len(said) :]


def with_broken_cues(data: bytes) -> bytes:
    """A Matroska file whose index leads elsewhere: what says where a cluster lies is another."""
    at = data.rindex(b"\x1c\x53\xbb\x6b")
    return data[:at] + data[at:].replace(b"\xf1\x82", b"\xf1\x82\x00\x07", 1)[: len(data) - at]


UNEVEN = [sum(10 + 90 * (one % 7 == 3) for one in range(number)) for number in range(COUNT)]
X264 = {"preset": "ultrafast", "bf": "3", "b_strategy": "0", "sc_threshold": "0"}


@cache
def h264(kind: str = "mp4") -> bytes:
    return encoded(kind, "libx264", **X264)


# What is searched, and whether it can be found from key frames.
CASES: dict[str, tuple[Callable[[], bytes], bool]] = {
    "mp4 with B-frames": (h264, True),
    "mkv with B-frames": (lambda: h264("matroska"), True),
    "uneven mp4": (lambda: encoded("mp4", "libx264", UNEVEN, **X264), True),
    "webm": (lambda: encoded("webm", "libvpx-vp9", deadline="realtime"), True),
    "mkv without an index": (lambda: encoded("matroska", "libx264", live="1", **X264), True),
    "a broken index of mkv": (lambda: with_broken_cues(h264("matroska")), True),
    "mp4 in fragments": (
        lambda: encoded("mp4", "libx264", movflags="frag_keyframe+empty_moov", **X264),
        True,
    ),
    "HEVC": (lambda: encoded("mp4", "libx265", preset="ultrafast"), True),
    "open groups": (
        lambda: encoded("matroska", "libx264", **X264, **{"x264-params": "open-gop=1"}),
        True,
    ),
    "refreshed line by line": (
        lambda: encoded("matroska", "libx264", preset="ultrafast", **{"intra-refresh": "1"}),
        False,
    ),
    "a wrong index of mp4": (lambda: with_sync_samples(h264(), range(1, 240, 31)), False),
    "MPEG-TS": (lambda: h264("mpegts"), False),
    "MPEG-4": (lambda: encoded("mp4", "mpeg4"), False),
    "VP8 with hidden frames": (lambda: encoded("webm", "libvpx", **{"lag-in-frames": "16"}), False),
}


def from_start(data: bytes, wanted: Sequence[int]) -> list[Any]:
    with av.open(io.BytesIO(data)) as container:
        container.streams.video[0].thread_type = "NONE"
        every = enumerate(container.decode(video=0))
        return [frame.to_ndarray(format="rgb24") for number, frame in every if number in wanted]


@pytest.mark.parametrize("name", CASES)
def test_they_are_those_that_come_from_the_start(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, seeks = CASES[name]
    data, every, decoded = make(), key_frames._from_key_frame, []

    def noted(*given: Any) -> Iterator[tuple[int, Any]]:
        for number, frame in every(*given):
            decoded.append(number)
            yield number, frame

    monkeypatch.setattr(key_frames, "_from_key_frame", noted)
    for wanted in WANTED:
        decoded.clear()
        found, expected = [*video_files.frames(io.BytesIO(data), wanted)], from_start(data, wanted)
        assert len(found) == len(expected) == len(wanted)
        assert all(map(np.array_equal, found, expected))
        assert seeks == (decoded[-1:] == wanted[-1:])
        if seeks:
            assert len(decoded) <= GROUP * len(wanted)


def test_damage_is_refused_or_shown() -> None:
    """What lies before a key frame does not count; what is behind is mended as a decoder does."""
    random, shown = np.random.default_rng(0), 0
    for number in range(12):
        broken = bytearray(h264("matroska" if number % 2 else "mp4"))
        for at in random.integers(0, len(broken), 5).tolist():
            broken[at] ^= 255
        with suppress(InvalidPrompt):
            found = [*video_files.frames(io.BytesIO(broken), WANTED[number % len(WANTED)])]
            shown += {frame.shape for frame in found} == {(48, 64, 3)}
    assert shown > 6
