"""Decodes videos from files and bytes, in a process of its own (child.py)."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np

from quire.inputs.media.containers import decoding, import_av, opened
from quire.inputs.media.images import checked_size
from quire.inputs.media.key_frames import Unsure, sought_frames
from quire.inputs.media.videos import MOST_RATE, MOST_SECONDS, bad

# Formats that hold the pictures themselves. A playlist could name other files and hosts.
_FORMATS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,ogg,mpegts,mpeg,flv,asf,gif"


def tasks() -> dict[str, Any]:
    """The tasks by name. Everything that they need is imported here, before the first task."""
    import_av()
    return {"about": about, "frames": frames}


def about(file: BinaryIO) -> Iterator[dict[str, Any]]:
    """Yield the number of frames (from the header or by counting packets), their rate and the size
    after rotation, for which the first frame is decoded."""
    raw = file.read()
    with _opened(raw) as container:
        if not container.streams.video:
            raise bad("holds no pictures")
        stream = container.streams.video[0]
        rate = float(stream.average_rate or 0)
        if not 0 < rate <= MOST_RATE:
            raise bad(f"has {rate:g} frames in a second; at most {MOST_RATE:g} are read")
        count = stream.frames or _packets(container)  # some formats do not say
        if count < 1:
            raise bad("holds no frames")
        if count / rate > MOST_SECONDS:
            raise bad(f"lasts {count / rate:,.0f} s; at most {MOST_SECONDS:,} s are read")
        size = checked_size(stream.width, stream.height, kind="video")
    with _opened(raw) as container:
        turned = _turns(next(_decoded(container), None)) % 2
    yield {"frames": count, "rate": rate, "size": size[::-1] if turned else size}


def frames(file: BinaryIO, wanted: Sequence[int]) -> Iterator[Any]:
    """Yield the frames of these numbers (ascending), as [height, width, 3] in RGB."""
    import av

    raw, left = file.read(), list(wanted)
    try:
        with _opened(raw) as container:
            for frame in sought_frames(container, wanted):
                yield _pixels(frame)
                left.pop(0)
    except (Unsure, av.FFmpegError, ValueError):
        pass  # decode from the start, which raises the error if the file is broken
    with _opened(raw) as container:
        for number, frame in enumerate(_decoded(container)):
            if not left:
                return
            if number == left[0]:
                yield _pixels(frame)
                left.pop(0)


def _pixels(frame: Any) -> Any:
    checked_size(frame.width, frame.height, kind="video")
    return np.rot90(frame.to_ndarray(format="rgb24"), _turns(frame))


def _turns(frame: Any) -> int:
    """By how many quarter turns to the left a frame is shown; a phone held upright sets this."""
    return 0 if frame is None else round(frame.rotation / 90)


def _opened(raw: bytes) -> Any:
    return opened(io.BytesIO(raw), _FORMATS, bad)


def _packets(container: Any) -> int:
    with decoding(bad):
        return sum(1 for packet in container.demux(video=0) if packet.size)


def _decoded(container: Any) -> Iterator[Any]:
    with decoding(bad):
        yield from container.decode(video=0)
