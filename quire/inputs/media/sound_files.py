"""Sound in files and bytes: judged by its header, then decoded, mixed and brought to one rate as a
stream, so that hours of it take no more memory than a block.

What is decoded is counted while it is: a file that holds more or less than its header says is
refused, wherever that shows.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from quire.errors import InvalidPrompt, NotSupported
from quire.inputs.media.files import open_file, reading

Samples = npt.NDArray[np.float32]
FORMATS = ("WAV", "WAVEX", "FLAC", "OGG", "MP3", "AIFF")
MOST_BYTES = 256 << 20  # of an encoded sound
MOST_SECONDS = 600
MOST_CHANNELS = 32
LEAST_RATE, MOST_RATE = 1_000, 384_000
MOST_LOUD = float(1 << 31)  # a sample; beyond that a spectrum of them overflows
_BLOCK = 1 << 16  # samples that are decoded at a time, of all channels together
# Lengths that a writer puts into a header when it does not know yet.
_UNKNOWN_LENGTHS = (0, 0x7FFFFFFF, 0xFFFFFFFF)


@dataclass(frozen=True, slots=True)
class About:
    """What the header of a sound says."""

    format: str
    rate: int
    channels: int
    frames: int

    @property
    def seconds(self) -> float:
        return self.frames / self.rate

    def num_samples(self, rate: int) -> int:
        """How many there are at another rate."""
        return -(-self.frames * rate // self.rate)


def about(data: bytes | Path, most_seconds: float = MOST_SECONDS) -> About:
    """What a sound is, if its header is one that quire reads on from."""
    with reading(bad), _opened(data) as file:
        return _checked(file, data, most_seconds)


def blocks(data: bytes | Path, rate: int, most_seconds: float = MOST_SECONDS) -> Iterator[Samples]:
    """The samples of a sound, mono, at this rate, one block after the other."""
    with reading(bad), _opened(data) as file:
        said = _checked(file, data, most_seconds)
        yield from resampled(_mono(file, said), said.rate, rate)


def part(path: Path, rate: int, start: float, num_samples: int) -> Samples:
    """So many samples at this rate of a file that was read before, from a second on; silence behind
    its end."""
    with reading(bad), _opened(path) as file:
        said = _checked(file, path, float("inf"))
        file.seek(min(int(start * said.rate), said.frames))
        frames = file.read(-(-num_samples * said.rate // rate), dtype="float32", always_2d=True)
        mono = checked_samples(frames[:, 0] if said.channels == 1 else frames.mean(1))
        made = np.concatenate([*resampled([mono], said.rate, rate)])[:num_samples]
        return np.pad(made, (0, num_samples - len(made)))


def checked_rate(rate: Any) -> int:
    if isinstance(rate, float) and rate.is_integer():
        rate = int(rate)
    if isinstance(rate, bool) or not isinstance(rate, int | np.integer):
        raise bad(f"has the rate {rate!r}; it is a number of samples in a second, such as 16000")
    if not LEAST_RATE <= rate <= MOST_RATE:
        raise bad(
            f"has {rate:,} samples in a second; from {LEAST_RATE:,} to {MOST_RATE:,} are read"
        )
    return int(rate)


def checked_samples(samples: Samples) -> Samples:
    # One pass over them: NaN is not within anything.
    if not (np.abs(samples) <= MOST_LOUD).all():
        raise bad("holds samples that are no numbers, or far too large; they go from -1 to 1")
    return samples


def resampled(given: Iterable[Samples], rate: int, wanted: int) -> Iterator[Samples]:
    """Samples at another rate, one block after the other."""
    if rate == wanted:
        yield from given
        return
    try:
        import soxr
    except ImportError:
        raise NotSupported(
            f"the sound has {rate:,} samples in a second and the model takes {wanted:,}; to bring "
            "it there takes the package soxr: pip install 'quire-llm[audio]'"
        ) from None
    stream = soxr.ResampleStream(rate, wanted, 1, dtype="float32")
    for block in given:
        yield stream.resample_chunk(block)
    yield stream.resample_chunk(np.zeros(0, np.float32), last=True)


def bad(why: str) -> InvalidPrompt:
    return InvalidPrompt(f"the sound {why}", parameter="multi_modal_data")


def _soundfile() -> Any:
    try:
        import soundfile
    except (ImportError, OSError):  # OSError: without the library that it calls
        raise NotSupported(
            "sound in files and bytes needs the package soundfile: pip install 'quire-llm[audio]'"
        ) from None
    return soundfile


class _Seekable(io.BytesIO):
    """Bytes whose reader may seek to before they begin, as a header may ask for: an error raised
    in a call from the library would be printed, and not raised."""

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        start = (0, self.tell(), len(self.getbuffer()))[whence]
        return super().seek(max(start + offset, 0))


@contextmanager
def _opened(data: bytes | Path) -> Iterator[Any]:
    module = _soundfile()
    with _Seekable(data) if isinstance(data, bytes) else open_file(data) as source:
        try:
            # A file is read by the library itself; bytes through calls back to here.
            given = source if isinstance(data, bytes) else source.fileno()
            file = module.SoundFile(given, closefd=False)
        except module.LibsndfileError as error:
            raise bad(
                f"cannot be opened ({str(error.error_string)[:100].rstrip('.')}); quire reads "
                f"{', '.join(FORMATS)}"
            ) from None
        with file:
            yield file


def _checked(file: Any, data: bytes | Path, most_seconds: float) -> About:
    if file.format not in FORMATS:
        raise bad(f"is in the format {file.format}; quire reads {', '.join(FORMATS)}")
    if not 1 <= file.channels <= MOST_CHANNELS:
        raise bad(f"has {file.channels} channels; at most {MOST_CHANNELS} are read")
    said = About(file.format, checked_rate(file.samplerate), file.channels, file.frames)
    if said.frames < 1:
        raise bad("holds no samples, or does not say how many")
    if said.seconds > most_seconds:
        raise bad(f"lasts {said.seconds:,.0f} s; at most {most_seconds:,.0f} s are read")
    if said.format in ("WAV", "WAVEX", "AIFF") and (short := _missing(data)):
        raise bad(f"is cut short: {short:,} bytes are missing")
    return said


def _missing(data: bytes | Path) -> int:
    """Bytes that the part with the samples of a WAV or AIFF lacks; decoders take what is there."""
    with io.BytesIO(data) if isinstance(data, bytes) else open_file(data) as file:
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        order, wanted = ("<", b"data") if file.read(4) == b"RIFF" else (">", b"SSND")
        at = 12
        while at + 8 <= size:  # few: a decoder that finds no samples in many chunks has refused it
            file.seek(at)
            name, length = struct.unpack(f"{order}4sI", file.read(8))
            if name == wanted:
                return 0 if length in _UNKNOWN_LENGTHS else max(at + 8 + length - size, 0)
            at += 8 + length + length % 2
    return 0


def _mono(file: Any, said: About) -> Iterator[Samples]:
    """Its samples, the channels averaged, block by block."""
    step, seen = max(_BLOCK // said.channels, 1), 0
    while len(block := file.read(step, dtype="float32", always_2d=True)):
        seen += len(block)
        if seen > said.frames:
            break
        yield checked_samples(block[:, 0] if said.channels == 1 else block.mean(1))
    if seen != said.frames:
        raise bad(f"is broken: its header says {said.frames:,} samples, and it has {seen:,}")
