"""Cuts long sounds into pieces that a model takes at once, at quiet moments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from quire.inputs.media.children import MediaChildren
from quire.inputs.media.identity import content_hash
from quire.inputs.media.samples import Samples, bad, part

STEPS = 100  # per second; pieces are cut at whole steps
_QUIET = 10  # the quiet moment is this many steps long
_LOOK_BACK = 5.0  # seconds before a piece's end in which the quietest moment is looked for


def cuts(blocks: Iterable[Samples], rate: int, seconds: float) -> Iterator[tuple[float, float]]:
    """The start and end of each piece in seconds, of a sound in blocks: at most `seconds` long, cut
    in the middle of the quietest tenth of a second near its end."""
    most, step = int(seconds * STEPS), rate // STEPS
    begun, ahead = 0, np.zeros(0, np.float32)
    for block in blocks:
        ahead = np.concatenate([ahead, block])
        while len(ahead) > most * step:
            length = _quietest(ahead[: most * step], step, seconds)
            yield begun / STEPS, (begun + length) / STEPS
            begun, ahead = begun + length, ahead[length * step :]
    if len(ahead):
        yield begun / STEPS, round(begun / STEPS + len(ahead) / rate, 4)


def _quietest(samples: Samples, step: int, seconds: float) -> int:
    """Where to cut, in steps from the first sample."""
    loud = np.square(samples.reshape(-1, step), dtype=np.float64).sum(1)
    back = max(int(min(_LOOK_BACK, seconds / 4) * STEPS), _QUIET)
    together = np.convolve(loud[-back:], np.ones(_QUIET), mode="valid")
    return len(loud) - back + int(together.argmin()) + _QUIET // 2


@dataclass(frozen=True, slots=True)
class SoundPiece:
    """Some seconds of a file, which are read when they are needed. `stamp` holds the size and the
    modification time of the file when it was cut; `rate` is the model's."""

    path: Path
    start: float
    end: float
    stamp: str
    rate: int
    children: MediaChildren = field(compare=False, repr=False)

    @property
    def content(self) -> bytes:
        about = f"{self.path}\0{self.stamp}\0{self.start}\0{self.end}\0{self.rate}"
        return content_hash(b"piece", about.encode("utf-8", "surrogateescape"))

    @property
    def num_samples(self) -> int:
        return max(round((self.end - self.start) * self.rate), 1)

    @property
    def size(self) -> tuple[int]:
        return (self.num_samples,)

    def open(self) -> Samples:
        if stamp_of(self.path) != self.stamp:
            raise bad(f"{self.path.name} changed while it was transcribed")
        return part(self.path, self.rate, self.start, self.num_samples, self.children)


def stamp_of(path: Path) -> str:
    try:
        found = path.stat()
    except OSError as error:
        raise bad(f"{path.name} cannot be read: {error.strerror}") from None
    return f"{found.st_size}:{found.st_mtime_ns}"
