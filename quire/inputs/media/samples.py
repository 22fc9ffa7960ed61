"""Checks and resamples sounds. Encoded ones are decoded in another process (child.py), in blocks,
so that hours of sound take no more memory than a block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from quire.errors import NotSupported
from quire.inputs.media.allowed import bad_medium
from quire.inputs.media.children import MediaChildren
from quire.inputs.media.decoders import NUM_FIRST, sound_decoder
from quire.inputs.media.files import open_file

Samples = npt.NDArray[np.float32]
MOST_BYTES = 256 << 20  # of an encoded sound
MOST_SECONDS = 600
MOST_CHANNELS = 32
LEAST_RATE, MOST_RATE = 1_000, 384_000
MOST_LOUD = float(1 << 31)  # of a sample; the spectrum of larger ones overflows
_FASTER = 20  # even a slow processor decodes this many seconds of sound per second
bad = partial(bad_medium, "audio")


@dataclass(frozen=True, slots=True)
class About:
    """The facts about a sound: `rate` counts samples per second, `frames` those of one channel."""

    format: str
    rate: int
    channels: int
    frames: int

    @property
    def seconds(self) -> float:
        return self.frames / self.rate

    def num_samples(self, rate: int) -> int:
        """The number of samples at another rate, rounded up."""
        return -(-self.frames * rate // self.rate)


def blocks(
    data: bytes | Path, rate: int, children: MediaChildren, most_seconds: float = MOST_SECONDS
) -> Iterator[Samples]:
    """The samples of a sound, mono, at this rate, one block after the other."""
    how = {"rate": rate, "most_seconds": most_seconds, "seconds": most_seconds / _FASTER}
    for block in children.ask(decoder_of(data), "blocks", data, **how):
        yield _numbers(block)


def part(path: Path, rate: int, start: float, num_samples: int, children: MediaChildren) -> Samples:
    """`num_samples` samples at this rate, of a file that was read before, from `start` seconds on;
    silence behind its end."""
    how = {"rate": rate, "start": start, "num_samples": num_samples, "seconds": start / _FASTER}
    made = _numbers(children.one(decoder_of(path), "part", path, **how))[:num_samples]
    return np.pad(made, (0, num_samples - len(made)))


def decoder_of(data: bytes | Path) -> str:
    """The name of the decoder for a sound."""
    if isinstance(data, bytes):
        return sound_decoder(data[:NUM_FIRST])
    with open_file(data) as file:
        return sound_decoder(file.read(NUM_FIRST))


def _numbers(given: Any) -> Samples:
    samples: Samples = np.asarray(given, np.float32)
    return samples


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
    # One comparison is enough, because a comparison with NaN is false.
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
