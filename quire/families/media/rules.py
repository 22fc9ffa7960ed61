"""What a family's file says of its media: what they become, and what stands for them in a prompt.

Counts follow from width and height, or from the number of samples, so that prompts can be planned
before anything is decoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from quire.families.fields import Fields

if TYPE_CHECKING:
    from PIL.Image import Image

Bytes = npt.NDArray[np.uint8]
Samples = npt.NDArray[np.float32]
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


@dataclass(frozen=True, slots=True)
class Placed:
    """What stands in a prompt for one item.

    `text` has one pad token for each run of rows of the encoder, and `runs` say how many each
    stands for: "<row><pad><end>", (4,) is one run of four. `grid` and `step`: see MediaItem."""

    text: str
    runs: tuple[int, ...]
    grid: tuple[int, int, int] | None = None
    step: float = 1.0

    @property
    def count(self) -> int:
        return sum(self.runs)


@dataclass(frozen=True, slots=True)
class Normalised:
    """How bytes become numbers: (byte * factor - mean) / std, channel by channel."""

    factor: float
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, said: Fields, mean: float | tuple[float, ...], std: Any) -> Normalised:
        """As a processor's config says; `mean` and `std` where it says nothing."""
        factor = said.positive("rescale_factor", 1 / 255)
        if said.values.get("do_rescale") is False:
            factor = 1.0
        if said.values.get("do_normalize") is False:
            return cls(factor, (0.0,) * 3, (1.0,) * 3)
        stds = _three(said, "image_std", std)
        if 0.0 in stds:
            raise said.wrong("image_std", "without 0")
        return cls(factor, _three(said, "image_mean", mean), stds)


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddedImages:
    """What the rules of most models have: a prompt has for an image the token that stands for a row
    of its encoder, and an image is resized by Pillow's filter `resample` before its numbers are
    made of its bytes."""

    pad: str
    resample: int
    normalised: Normalised
    two_way: bool = False

    @property
    def placeholder(self) -> str:
        return self.pad


class MediaRules(Protocol):
    """One model's rules for one kind of media. Its repr names all that decides what an item
    becomes; how large it is, is said by as many numbers as its kind has."""

    @property
    def placeholder(self) -> str:
        """What a prompt has for one item."""

    @property
    def pad(self) -> str:
        """The token that stands for a row of the encoder."""

    @property
    def two_way(self) -> bool:
        """Whether the tokens of an item see each other."""

    def place(self, *size: Any, **among: Any) -> Placed:
        """What stands for an item of this size, `together` with so many of its kind in its prompt,
        itself included."""

    def prepare(self, *opened: Any, **among: Any) -> dict[str, npt.NDArray[Any]]:
        """What the tower reads of it."""

    def num_bytes(self, *size: Any, **among: Any) -> int:
        """About how many bytes that takes."""


class SoundRules(MediaRules, Protocol):
    """Those for sounds, whose size is their number of samples."""

    @property
    def rate(self) -> int:
        """Samples in a second."""


class HeardRules(SoundRules, Protocol):
    @property
    def num_samples(self) -> int:
        """At most, of a sound."""


@dataclass(frozen=True, slots=True)
class VideoShape:
    """How many frames a video has, and of which size; `rate` in a second, where that is known.

    `sampled`: they were chosen already, and all are taken; `at` then has the number of each among
    the `total` of the whole video."""

    frames: int
    width: int
    height: int
    rate: float | None
    at: tuple[int, ...] | None = None
    total: int | None = None
    sampled: bool = True


class VideoFrames(Protocol):
    """A video whose frames can be had."""

    @property
    def shape(self) -> VideoShape:
        """What it is."""

    def frames(self, wanted: Sequence[int]) -> Iterator[Image]:
        """These of them, in RGB, in order."""


class ImageRules(MediaRules, Protocol):
    @property
    def normalised(self) -> Normalised:
        """How the tower's numbers are made of bytes."""

    def place(self, width: int, height: int, *, together: int) -> Placed:
        """What stands for an image of this size, beside so many in its prompt, itself included."""

    def prepare(self, image: Image, *, together: int) -> dict[str, npt.NDArray[Any]]:
        """What the tower reads of an image in RGB."""

    def num_bytes(self, width: int, height: int, *, together: int) -> int:
        """About how many bytes that takes."""


def background_of(said: Fields, mean: float | tuple[float, ...] = CLIP_MEAN) -> tuple[int, ...]:
    """The colour that an image is put on, as bytes: the mean of all, whether it is taken off
    afterwards or not; `mean` where a processor's config says nothing."""
    return tuple(int(one * 255) for one in _three(said, "image_mean", mean))


def _three(said: Fields, key: str, unsaid: Any) -> tuple[float, ...]:
    given = said.values.get(key)
    given = unsaid if given is None else given
    numbers = given if isinstance(given, list | tuple) else [given] * 3
    usual = (isinstance(one, int | float) and abs(one) < 1e6 for one in numbers)
    if len(numbers) != 3 or not all(usual):
        raise said.wrong(key, "a number, or one for each of three channels")
    return tuple(float(number) for number in numbers)
