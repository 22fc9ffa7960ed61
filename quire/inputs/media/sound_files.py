"""Decodes sounds from files and bytes, in a process of its own (child.py). A sound is checked by
its header, and then decoded, mixed to mono and resampled block by block.

Samples are counted while they are decoded. A file with more or fewer samples than its header says
is refused as soon as that shows.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any, BinaryIO

import numpy as np

from quire.inputs.media.decoders import TRACKS
from quire.inputs.media.samples import (
    MOST_CHANNELS,
    About,
    Samples,
    bad,
    checked_rate,
    checked_samples,
    resampled,
)

FORMATS = ("WAV", "WAVEX", "FLAC", "OGG", "MP3", "AIFF", "RF64", "W64", "AU", "CAF")
_UNPACKED = ("WAV", "WAVEX", "AIFF", "RF64", "W64", "AU")  # may end early unnoticed
_BLOCK = 1 << 16  # samples that are decoded at a time, of all channels together


def tasks() -> dict[str, Any]:
    """The tasks by name. Everything that they need is imported here, before the first task."""
    import soundfile  # noqa: F401

    with suppress(ImportError):  # missed where it is needed
        import soxr  # noqa: F401
    return {"about": about, "blocks": blocks, "part": part}


def about(file: BinaryIO, most_seconds: float) -> Iterator[dict[str, Any]]:
    with _opened(file) as sound:
        yield asdict(_checked(sound, file, most_seconds))


def blocks(file: BinaryIO, rate: int, most_seconds: float) -> Iterator[Samples]:
    """Yield the samples, mono, at this rate."""
    with _opened(file) as sound:
        said = _checked(sound, file, most_seconds)
        yield from resampled(_mono(sound, said), said.rate, rate)


def part(file: BinaryIO, rate: int, start: float, num_samples: int) -> Iterator[Samples]:
    """Yield `num_samples` samples from `start` seconds on, or fewer if the file ends before."""
    with _opened(file) as sound:
        said = _checked(sound, file, float("inf"))
        sound.seek(min(int(start * said.rate), said.frames))
        frames = sound.read(-(-num_samples * said.rate // rate), dtype="float32", always_2d=True)
        mono = checked_samples(frames[:, 0] if said.channels == 1 else frames.mean(1))
        yield np.concatenate([*resampled([mono], said.rate, rate)])


@contextmanager
def _opened(file: BinaryIO) -> Iterator[Any]:
    import soundfile

    try:
        sound = soundfile.SoundFile(file.fileno(), closefd=False)
    except soundfile.LibsndfileError as error:
        raise bad(
            f"cannot be opened ({str(error.error_string)[:100].rstrip('.')}); quire reads "
            f"{', '.join(FORMATS)}, and with the package av {TRACKS}"
        ) from None
    with sound:
        yield sound


def _checked(sound: Any, file: BinaryIO, most_seconds: float) -> About:
    if sound.format not in FORMATS:
        raise bad(f"is in the format {sound.format}; quire reads {', '.join(FORMATS)}")
    if not 1 <= sound.channels <= MOST_CHANNELS:
        raise bad(f"has {sound.channels} channels; at most {MOST_CHANNELS} are read")
    said = About(sound.format, checked_rate(sound.samplerate), sound.channels, sound.frames)
    if said.frames < 1:
        raise bad("holds no samples, or does not say how many")
    if said.seconds > most_seconds:
        raise bad(f"lasts {said.seconds:,.0f} s; at most {most_seconds:,.0f} s are read")
    if said.format in _UNPACKED and (short := _missing(file.fileno())):
        raise bad(f"is cut short: {short:,} bytes are missing")
    return said


def _missing(file: int) -> int:
    """How many bytes the chunk with the samples lacks. os.pread leaves the file position of the
    decoder as it is."""
    size, begins = os.fstat(file).st_size, os.pread(file, 12, 0)
    if begins[:4] in (b".snd", b"dns."):  # AU: where samples begin, and their length
        first, length = struct.unpack(">II" if begins[:1] == b"." else "<II", begins[4:])
        return 0 if _is_unknown(length) else max(first + length - size, 0)
    if begins[:4] == b"riff":  # W64: names of 16 bytes, lengths of 8 that count themselves
        return _missing_of(file, size, 40, "<4s12xQ", b"data", unit=8, own=24)
    if begins[:4] == b"FORM":
        return _missing_of(file, size, 12, ">4sI", b"SSND")
    return _missing_of(file, size, 12, "<4sI", b"data")


def _missing_of(
    file: int, size: int, at: int, header: str, wanted: bytes, *, unit: int = 2, own: int = 0
) -> int:
    """The same for a file of chunks that begin at `at`. Chunks are padded to `unit` bytes; `own` is
    how many bytes of a chunk's length belong to its header."""
    width, large = struct.calcsize(header), 0
    while at + width <= size:  # few: a decoder that finds no samples in many chunks has refused it
        name, length = struct.unpack(header, os.pread(file, width, at))
        length = max(length - own, 0)
        if name == b"ds64":  # RF64: the length of what is too long for four bytes
            _, large = struct.unpack("<QQ", os.pread(file, 16, at + width).ljust(16, b"\0"))
        if name == wanted:
            length = large or length
            return 0 if _is_unknown(length) else max(at + width + length - size, 0)
        at += width + -(-length // unit) * unit
    return 0


def _is_unknown(length: int) -> bool:
    """Whether a header's length was unknown to its writer: 0, or near 2 or 4 GiB (SoX 0x7FFFF000,
    arecord 0x80000000, FFmpeg 0xFFFFFFFF, some less)."""
    return length == 0 or abs(length - (1 << 31)) <= 1 << 13 or 0 <= (1 << 32) - length <= 1 << 13


def _mono(sound: Any, said: About) -> Iterator[Samples]:
    """Yield the samples, with the channels averaged, block by block."""
    step, seen = max(_BLOCK // said.channels, 1), 0
    while len(block := sound.read(step, dtype="float32", always_2d=True)):
        seen += len(block)
        if seen > said.frames:
            break
        yield checked_samples(block[:, 0] if said.channels == 1 else block.mean(1))
    if seen != said.frames:
        raise bad(f"is broken: its header says {said.frames:,} samples, and it has {seen:,}")
