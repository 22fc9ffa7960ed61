"""Decodes sounds in formats that libsndfile lacks with av, in a process of its own (child.py).

The headers of such files are not reliable, so the length of a sound is counted while all of it is
decoded. Frames are placed by their times, and gaps between them are filled with silence. So the
samples from a given second on are the same as when all of the file is read.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO

import numpy as np

from quire.inputs.media.containers import decoding, import_av, opened
from quire.inputs.media.samples import (
    MOST_CHANNELS,
    About,
    Samples,
    bad,
    checked_rate,
    checked_samples,
    resampled,
)

# Formats that hold the sound themselves. A playlist could name other files and hosts.
_FORMATS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,aac,asf,amr,flac"
_SOUGHT = ("mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm")  # their times hold after a seek
_SETTLED = 1.0  # decoding begins this many seconds before the wanted sound
_JITTER = 0.05  # seconds by which times may be off: some formats count in milliseconds
_MOST_BACK = 1.0  # seconds that times may go back; a larger step means two sounds in one file
_BLOCK = 1 << 16  # samples of silence at a time
# The first bytes of the outermost parts: of Matroska, of WMA, and of MP4, behind a length.
_EBML, _SEGMENT = b"\x1aE\xdf\xa3", b"\x18S\x80g"
_ASF = b"0&\xb2u\x8ef\xcf\x11"
_BOXES = (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"moof", b"mfra", b"sidx", b"styp")


def tasks() -> dict[str, Any]:
    """The tasks by name. Everything that they need is imported here, before the first task."""
    import_av()
    with suppress(ImportError):  # missed where it is needed
        import soxr  # noqa: F401
    return {"about": about, "blocks": blocks, "part": part}


def about(file: BinaryIO, most_seconds: float) -> Iterator[dict[str, Any]]:
    with _opened(file) as (container, track):
        frames = sum(map(len, _mono(container, track, most_seconds)))
        if not frames:
            raise bad("holds no samples")
        yield asdict(About(track.format, track.rate, track.channels, frames))


def blocks(file: BinaryIO, rate: int, most_seconds: float) -> Iterator[Samples]:
    """Yield the samples, mono, at this rate."""
    with _opened(file) as (container, track):
        yield from resampled(_mono(container, track, most_seconds), track.rate, rate)


def part(file: BinaryIO, rate: int, start: float, num_samples: int) -> Iterator[Samples]:
    """Yield `num_samples` samples from `start` seconds on, or fewer if the file ends before."""
    with _opened(file) as (container, track):
        first, left = round(start * track.rate), -(-num_samples * track.rate // rate)
        _seek(container, track, start)
        found = [np.zeros(0, np.float32)]
        for at, samples in _even(_frames(container, track), track.rate):
            found.append(samples[max(first - at, 0) : max(first + left - at, 0)])
            if at + len(samples) >= first + left:
                break
        yield np.concatenate([*resampled([np.concatenate(found)], track.rate, rate)])


@dataclass(frozen=True, slots=True)
class _Track:
    """What the first frame says about a sound; a header may say otherwise."""

    format: str
    rate: int
    channels: int
    begins: float  # seconds


@contextmanager
def _opened(file: BinaryIO) -> Iterator[tuple[Any, _Track]]:
    """The container, before its first frame, and what its first frame says."""
    if short := _missing(file.fileno()):
        raise bad(f"is cut short: {short:,} bytes are missing")
    with opened(file, _FORMATS, bad) as container:
        if not container.streams.audio:
            raise bad("is a file without a sound")
        first = next(_decoded(container), None)
        if first is None:
            raise bad("holds no samples")
        channels = len(first.layout.channels)
        if not 1 <= channels <= MOST_CHANNELS:
            raise bad(f"has {channels} channels; at most {MOST_CHANNELS} are read")
        rate = checked_rate(first.sample_rate)
        track = _Track(container.format.name, rate, channels, first.time or 0.0)
    with opened(file, _FORMATS, bad) as container:
        yield container, track


def _mono(container: Any, track: _Track, most_seconds: float) -> Iterator[Samples]:
    for at, samples in _even(_frames(container, track), track.rate):
        if at + len(samples) > most_seconds * track.rate:
            raise bad(f"lasts more than {most_seconds:,.0f} s, the most that are read")
        yield samples


def _seek(container: Any, track: _Track, start: float) -> None:
    """Seek to _SETTLED seconds before `start`, if the format's times hold; or to the beginning."""
    if start < _SETTLED or container.format.name not in _SOUGHT:
        return
    stream, wanted = container.streams.audio[0], track.begins + start
    at = int((wanted - _SETTLED) / stream.time_base)
    container.seek(at, stream=stream)
    first = next(_decoded(container), None)
    is_before = first is not None and first.time is not None and first.time <= wanted
    container.seek(at if is_before else 0, stream=stream)


def _even(frames: Iterator[tuple[int | None, Samples]], rate: int) -> Iterator[tuple[int, Samples]]:
    """Samples without gaps, each array with the index of its first one. Frames may lack it."""
    at: int | None = None
    for said, samples in frames:
        at = (said or 0) if at is None else at
        off = 0 if said is None else said - at
        if off < -_MOST_BACK * rate:
            raise bad(f"is broken: its times go back by {-off / rate:,.1f} s")
        if off > _JITTER * rate:
            for begun in range(at, at + off, _BLOCK):
                yield begun, np.zeros(min(_BLOCK, at + off - begun), np.float32)
            at += off
        elif off < -_JITTER * rate:
            samples = samples[-off:]  # drop samples that were yielded already
        yield at, samples
        at += len(samples)


def _frames(container: Any, track: _Track) -> Iterator[tuple[int | None, Samples]]:
    """Each frame's first index (None: it has no time) and samples, the channels averaged."""
    import av

    convert = av.AudioResampler(format="fltp")
    for frame in _decoded(container):
        if frame.sample_rate != track.rate or len(frame.layout.channels) != track.channels:
            raise bad("is broken: its rate or its channels change")
        said = None if frame.time is None else round((frame.time - track.begins) * track.rate)
        made = np.concatenate([one.to_ndarray() for one in convert.resample(frame)], 1)
        yield said, checked_samples(made[0] if track.channels == 1 else made.mean(0))


def _decoded(container: Any) -> Iterator[Any]:
    with decoding(bad):
        yield from container.decode(audio=0)


def _missing(file: int) -> int:
    """How many bytes the file lacks of the lengths that its outermost parts give."""
    size, at = os.fstat(file).st_size, 0
    begins = os.pread(file, 4, 0)
    length_of = {_EBML: _ebml_length, _ASF[:4]: _asf_length}.get(begins, _box_length)
    while at < size:
        length = length_of(os.pread(file, 24, at).ljust(24, b"\0"))
        if length is None:
            return 0
        at += length
    return at - size


def _ebml_length(begins: bytes) -> int | None:
    """The bytes of a part that begins so, with its header; None if it does not say. The length
    takes one byte more than its first byte has leading zero bits."""
    width = 9 - begins[4].bit_length()
    if begins[:4] not in (_EBML, _SEGMENT) or width > 8:
        return None
    most = (1 << 7 * width) - 1
    said = int.from_bytes(begins[4 : 4 + width], "big") & most
    return None if said == most else 4 + width + said


def _asf_length(begins: bytes) -> int | None:
    said: int = struct.unpack("<16xQ", begins)[0]
    return said if begins[1:8] == _ASF[1:] and said >= 24 else None


def _box_length(begins: bytes) -> int | None:
    short, name, long = struct.unpack(">I4sQ8x", begins)
    said: int = long if short == 1 else short
    return said if name in _BOXES and said >= 8 else None
