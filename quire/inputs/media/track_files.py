"""Sounds in formats that libsndfile lacks, decoded by av: in a process of its own (child.py).

Headers of such files say little that must be true, so how long a sound is comes from decoding it,
counted while it is. Its times are what its frames say: where they leave a gap there is silence, so
that what is read from a second on is what is there when all of it is read.
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

# Formats that hold their sound themselves: a playlist would name other files, and hosts.
_FORMATS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,aac,asf,amr,flac"
_SOUGHT = ("mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm")  # whose times hold wherever one begins
_SETTLED = 1.0  # seconds that a decoder is begun before what is wanted of it
_JITTER = 0.05  # seconds by which times may be off: some formats count in thousandths
_MOST_BACK = 1.0  # seconds that times may go back; more are two sounds in one file
_BLOCK = 1 << 16  # samples of silence at a time
# What the outermost parts of files begin with: of Matroska, of WMA, and of MP4, behind a length.
_EBML, _SEGMENT = b"\x1aE\xdf\xa3", b"\x18S\x80g"
_ASF = b"0&\xb2u\x8ef\xcf\x11"
_BOXES = (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"moof", b"mfra", b"sidx", b"styp")


def tasks() -> dict[str, Any]:
    """By name; all that they import is there before the first."""
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
    """Mono, at this rate."""
    with _opened(file) as (container, track):
        yield from resampled(_mono(container, track, most_seconds), track.rate, rate)


def part(file: BinaryIO, rate: int, start: float, num_samples: int) -> Iterator[Samples]:
    """So many samples from a second on, or as many as there are."""
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
    """What its first frame says of a sound; a header may say otherwise."""

    format: str
    rate: int
    channels: int
    begins: float  # seconds


@contextmanager
def _opened(file: BinaryIO) -> Iterator[tuple[Any, _Track]]:
    """Before its first frame, and what that one says."""
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
    """Go on shortly before a second, where what comes then says when it does."""
    if start < _SETTLED or container.format.name not in _SOUGHT:
        return
    stream, wanted = container.streams.audio[0], track.begins + start
    at = int((wanted - _SETTLED) / stream.time_base)
    container.seek(at, stream=stream)
    first = next(_decoded(container), None)
    is_before = first is not None and first.time is not None and first.time <= wanted
    container.seek(at if is_before else 0, stream=stream)


def _even(frames: Iterator[tuple[int | None, Samples]], rate: int) -> Iterator[tuple[int, Samples]]:
    """Samples and which they are, without gaps: frames that say when they come, or not."""
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
            samples = samples[-off:]  # what was heard already
        yield at, samples
        at += len(samples)


def _frames(container: Any, track: _Track) -> Iterator[tuple[int | None, Samples]]:
    """When each frame begins, in samples, and its own, the channels averaged."""
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
    """Bytes that a file lacks of what its outermost parts say they have."""
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
    """Of the part of a file that begins so, in bytes with its header; None where it does not say.
    Its length takes as many bytes as the first of them begins with zeros, and one."""
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
