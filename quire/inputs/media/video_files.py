"""Videos in files and bytes, decoded: in a process of its own (child.py)."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np

from quire.inputs.media.containers import decoding, import_av, opened
from quire.inputs.media.images import checked_size
from quire.inputs.media.key_frames import Unsure, sought_frames
from quire.inputs.media.videos import MOST_RATE, MOST_SECONDS, bad

# Formats that hold their pictures themselves: a playlist would name other files, and hosts.
_FORMATS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,ogg,mpegts,mpeg,flv,asf,gif"


def tasks() -> dict[str, Any]:
    """By name; all that they import is there before the first."""
    import_av()
    return {"about": about, "frames": frames}


def about(file: BinaryIO) -> Iterator[dict[str, Any]]:
    """What the header says, or its packets; of frames the first alone is decoded, which says how
    all are turned."""
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
    """These of them, [height, width, 3] in RGB."""
    import av

    raw, left = file.read(), list(wanted)
    try:
        with _opened(raw) as container:
            for frame in sought_frames(container, wanted):
                yield _pixels(frame)
                left.pop(0)
    except (Unsure, av.FFmpegError, ValueError):
        pass  # from the start it says what is wrong, if anything is
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
    """Quarters of a turn to the left that a frame is shown with; a phone held upright says so."""
    return 0 if frame is None else round(frame.rotation / 90)


def _opened(raw: bytes) -> Any:
    return opened(io.BytesIO(raw), _FORMATS, bad)


def _packets(container: Any) -> int:
    with decoding(bad):
        return sum(1 for packet in container.demux(video=0) if packet.size)


def _decoded(container: Any) -> Iterator[Any]:
    with decoding(bad):
        yield from container.decode(video=0)
